"""Options of supervised training."""

from dataclasses import dataclass
from typing import Any

from protonce.config import Resolved
from protonce.methods.options import Options, register


@register(
    "supervised",
    "Supervised",
    "cross-entropy with labels, an upper bound",
    "protonce.methods.supervised:Supervised",
    paper=("Supervised", "Supervised baseline"),
    bound=True,
)
@dataclass(frozen=True)
class SupervisedOptions(Options):
    """Supervised training has no options."""

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Learning rate and weight decay."""
        rates = [{"lr": settings.lr * factor} for factor in (0.25, 0.5, 2.0)]
        return [{}, *rates, *({"weight_decay": settings.weight_decay * factor} for factor in (0.2, 5.0))]
