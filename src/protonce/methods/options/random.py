"""Options of an encoder that is not trained."""

from dataclasses import dataclass
from typing import Any

from protonce.config import Resolved
from protonce.methods.options import Options, register


@register(
    "random",
    "Random",
    "untrained weights, a lower bound",
    "protonce.methods.random:Random",
    paper=("Random",),
    bound=True,
)
@dataclass(frozen=True)
class RandomOptions(Options):
    """An encoder that is not trained has no options."""

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Nothing to tune."""
        return [{}]
