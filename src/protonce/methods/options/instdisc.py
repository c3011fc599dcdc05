"""Options of InstDisc."""

from dataclasses import dataclass
from typing import Any

from protonce.config import Resolved
from protonce.fields import setting
from protonce.methods.options import register
from protonce.methods.options.bank import InstanceOptions


@register(
    "instdisc",
    "InstDisc",
    "instance discrimination with a memory bank of all images",
    "protonce.methods.instdisc:InstDisc",
    paper=("InstDisc", "Inst. Disc."),
)
@dataclass(frozen=True)
class InstDiscOptions(InstanceOptions):
    """Options of InstDisc."""

    proximal: float = setting(
        0.0,
        "lambda, weight of the proximal regularisation of eq. 10, 30 in the paper's fig. 3; 0, as in the published "
        "code, has none",
        least=0,
        most=1_000_000,
    )

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Learning rate, temperature, the bank's momentum, and the proximal term."""
        return [
            {},
            {"lr": settings.lr / 2},
            {"lr": settings.lr * 2},
            {"tau": settings.tau / 2},
            {"bank_momentum": self.bank_momentum / 2},
            {"proximal": 30.0 - self.proximal if self.proximal < 30 else 0.0},
        ]
