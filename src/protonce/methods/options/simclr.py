"""Options of SimCLR: it has none, as its negatives are the batch."""

from dataclasses import dataclass
from typing import Any

from protonce.config import Resolved
from protonce.methods.options import Options, register


@register(
    "simclr",
    "SimCLR",
    "instance discrimination within the batch (NT-Xent)",
    "protonce.methods.simclr:SimCLR",
    head="mlp-bn",
    paper=("SimCLR",),
)
@dataclass(frozen=True)
class SimCLROptions(Options):
    """Options of SimCLR."""

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Learning rate and temperature."""
        rates = [{"lr": settings.lr * factor} for factor in (0.5, 2.0, 4.0)]
        return [{}, *rates, {"tau": settings.tau / 2}, {"tau": settings.tau * 2}]
