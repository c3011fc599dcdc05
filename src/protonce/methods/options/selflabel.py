"""Options of SeLa."""

from dataclasses import dataclass
from typing import Any

from protonce import auto
from protonce.config import LONG, MANY, Resolved
from protonce.fields import setting
from protonce.methods.options import Options, register


@register(
    "selflabel",
    "SeLa",
    "predict balanced labels of its own",
    "protonce.methods.selflabel:SelfLabel",
    paper=("SelfLabel",),
)
@dataclass(frozen=True)
class SelfLabelOptions(Options):
    """Options of SeLa."""

    k: int = setting("auto", "labels of each head; auto is 3000 for ImageNet", least=2, most=MANY, auto=True)
    heads: int = setting(10, "number of heads, each with labels of its own", least=1, most=10_000)
    optimizations: int = setting(
        "auto",
        "how often labels are computed over the training; auto is 100 in 400 epochs",
        least=1,
        most=LONG,
        auto=True,
    )
    transport_lambda: float = setting(25.0, "lambda, the sharpness of the transport to labels", above=0, most=10_000)

    def choices(self, settings: Resolved, n: int) -> dict[str, Any]:
        """The published numbers at ImageNet's size and in 400 epochs; at least ten optimisations, if there is time."""
        return {
            "k": auto.pseudo_classes(n, 3000),
            "optimizations": max(round(settings.epochs / 4), min(settings.epochs, 10)),
        }

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:
        """Learning rate, number of labels, and how often they are computed."""
        rates: list[dict[str, Any]] = [{"lr": settings.lr / 2}, {"lr": settings.lr * 2}]
        sizes = [{"k": max(self.k // 2, 2)}, {"k": min(2 * self.k, n)}]
        return [{}, *rates, *sizes, {"optimizations": 2 * self.optimizations}]
