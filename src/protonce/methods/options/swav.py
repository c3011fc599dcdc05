"""Options of SwAV."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from protonce.config import LONG, MANY, Resolved
from protonce.fields import setting
from protonce.methods.options import Options, register

IMAGENET = 1_281_167  # images
QUEUED = 15  # batches
FEW = 1 / 4  # images in a batch for each prototype, from which on a queue is needed; published: 256 and 3000


@register(
    "swav",
    "SwAV",
    "swapped prediction of assignments to learnt prototypes",
    "protonce.methods.swav:SwAV",
    head="mlp-bn",
    paper=("SwAV",),
)
@dataclass(frozen=True)
class SwAVOptions(Options):
    """Options of SwAV."""

    prototypes: int = setting(
        "auto", "number of learnt prototypes; auto is 3000 for ImageNet", least=2, most=MANY, auto=True
    )
    crops: Literal["2+6", "2"] = setting(
        "auto",
        "2+6: two large and six small views (multi-crop); 2: the large ones only. auto is 2 for views below 64 pixels",
        auto=True,
    )
    epsilon: float = setting(0.05, "smoothness of the assignments (Sinkhorn)", above=0, least=1e-4, most=100)
    sinkhorn_iterations: int = setting(3, "iterations of Sinkhorn-Knopp", least=1, most=10_000)
    frozen_steps: int = setting(
        "auto", "first steps in which prototypes are not trained; auto is one epoch", least=0, most=MANY, auto=True
    )
    code_queue: int = setting(
        "auto",
        "features of earlier batches that take part in the assignment; 0 is none. auto is 15 batches if there are four "
        "times as many prototypes as images in a batch, else 0",
        least=0,
        most=MANY,
        auto=True,
    )
    code_queue_from: int = setting(
        "auto", "epoch, from 0, from which features join the queue; auto is at most 15", least=0, most=LONG, auto=True
    )

    def choices(self, settings: Resolved, n: int) -> dict[str, Any]:
        """The paper's numbers; prototypes by the square root of n, and at least eight images for each."""
        given: object = self.prototypes
        by_size = round(3000 * math.sqrt(min(n / IMAGENET, 1)))
        prototypes = given if isinstance(given, int) else max(min(by_size, n // 8), 2)
        return {
            "prototypes": prototypes,
            "crops": "2+6" if settings.image_size >= 64 else "2",
            "frozen_steps": math.ceil(n / settings.batch_size),
            "code_queue": min(QUEUED * settings.batch_size, n) if settings.batch_size <= FEW * prototypes else 0,
            "code_queue_from": min(15, round(settings.epochs * 15 / 200)),  # published: 15 of 200 epochs, and of 400
        }

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:
        """Learning rate, temperature and number of prototypes."""
        rates = [{"lr": settings.lr * factor} for factor in (0.5, 2.0)]
        numbers = [{"prototypes": max(self.prototypes // 2, 2)}, {"prototypes": min(2 * self.prototypes, n)}]
        return [{}, *rates, {"tau": settings.tau / 2}, *numbers]
