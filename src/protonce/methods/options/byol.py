"""Options of BYOL."""

from dataclasses import dataclass
from typing import Any

from protonce import auto
from protonce.config import Resolved
from protonce.fields import setting
from protonce.methods.options import Options, register


@register(
    "byol",
    "BYOL",
    "prediction of a momentum encoder's output, no negatives",
    "protonce.methods.byol:BYOL",
    head="mlp-bn",
    paper=("BYOL",),
)
@dataclass(frozen=True)
class BYOLOptions(Options):
    """Options of BYOL."""

    twin_momentum: float = setting(
        "auto",
        "m of theta' = m theta' + (1 - m) theta at the start, tau_base; rises to 1",
        least=0,
        most=1,
        auto=True,
    )
    predictor: int = setting(
        "auto", "width of the predictor's hidden layer; auto is 16 times dim", least=1, most=1_000_000, auto=True
    )
    second_blur_p: float = setting(
        "auto", "probability of blur of the second view; auto is a tenth of blur_p", least=0, most=1, auto=True
    )
    second_solarise_p: float = setting(
        "auto",
        "probability of solarisation of the second view; auto is a fifth of blur_p, none for images too small to blur",
        least=0,
        most=1,
        auto=True,
    )

    def choices(self, settings: Resolved, n: int) -> dict[str, Any]:
        """The paper's ratios; a faster twin in short training."""
        blur_p = settings.blur_p if settings.views == "v2" else 0.0
        return {
            "twin_momentum": min(0.996, auto.twin_momentum(settings, n)),
            "predictor": 16 * settings.dim,
            "second_blur_p": 0.1 * blur_p,
            "second_solarise_p": 0.2 * blur_p,
        }

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Learning rate and twin."""
        rates = [{"lr": settings.lr * factor} for factor in (0.5, 2.0, 4.0)]
        twins = [{"twin_momentum": round(1 - (1 - self.twin_momentum) * factor, 6)} for factor in (1 / 2, 1 / 4)]
        return [{}, *rates, *twins]
