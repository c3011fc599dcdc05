"""Options of jigsaw puzzles."""

from dataclasses import dataclass
from typing import Any

from protonce.auto import IMAGENET_SIZE
from protonce.config import Resolved
from protonce.fields import setting
from protonce.methods.options import Options, register

ALL = 362_880  # permutations of nine tiles


@register(
    "jigsaw",
    "Jigsaw",
    "recognise the order of nine shuffled tiles",
    "protonce.methods.jigsaw:Jigsaw",
    paper=("Jigsaw",),
)
@dataclass(frozen=True)
class JigsawOptions(Options):
    """Options of jigsaw puzzles."""

    permutations: int = setting(
        "auto",
        "number of permutations; auto is 2000 for ImageNet and 100 for little data",
        least=2,
        most=ALL,
        auto=True,
    )
    tile_dim: int = setting(
        "auto", "width of the layer of each tile; auto is 1000 for ImageNet", least=1, most=65_536, auto=True
    )

    def choices(self, settings: Resolved, n: int) -> dict[str, Any]:  # noqa: ARG002
        """Those of Goyal et al. at ImageNet's size, and the 100 permutations of the first paper for little data."""
        return {
            "permutations": min(max(round(2000 * n / IMAGENET_SIZE), 100), 2000),
            "tile_dim": min(max(n // 10, 64), 1000),
        }

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Learning rate, and number of permutations."""
        numbers = (max(self.permutations // 4, 2), min(self.permutations * 4, ALL))
        rates: list[dict[str, Any]] = [{"lr": settings.lr * factor} for factor in (0.5, 2.0, 4.0)]
        return [{}, *rates, *({"permutations": number} for number in numbers)]
