"""Options of PIRL."""

from dataclasses import dataclass
from typing import Any, Literal

from protonce.config import Resolved
from protonce.fields import setting
from protonce.methods.options import register
from protonce.methods.options.bank import BankOptions


@register(
    "pirl",
    "PIRL",
    "an image and its jigsaw of nine patches against a memory bank",
    "protonce.methods.pirl:PIRL",
    paper=("PIRL",),
)
@dataclass(frozen=True)
class PIRLOptions(BankOptions):
    """Options of PIRL."""

    jigsaw_weight: float = setting(0.5, "lambda of eq. 6, the share of the jigsaw in the loss", least=0, most=1)
    normaliser: Literal["sampled", "constant"] = setting(
        "sampled",
        "of h: sampled, the sum over the negatives (eq. 4); constant, estimated from the first batch, as in InstDisc "
        "and in the published code",
    )

    def choices(self, settings: Resolved, n: int) -> dict[str, Any]:  # noqa: ARG002
        """The paper's 32,000 negatives, or all others."""
        return {"negatives": min(32_000, n - 1)}

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Learning rate, temperature, negatives, and the share of the jigsaw."""
        return [
            {},
            {"lr": settings.lr / 2},
            {"lr": settings.lr * 2},
            {"tau": settings.tau / 2},
            {"negatives": max(self.negatives // 4, 1)},
            {"jigsaw_weight": self.jigsaw_weight / 2},
        ]
