"""Options of DeepCluster."""

import math
from dataclasses import dataclass
from typing import Any

from protonce import auto
from protonce.config import LONG, MANY, Resolved
from protonce.fields import setting
from protonce.methods.options import Options, register

STEPS = 100  # between two clusterings


@register(
    "deepcluster",
    "DeepCluster",
    "predict clusters of the last epoch",
    "protonce.methods.deepcluster:DeepCluster",
    paper=("DeepCluster",),
)
@dataclass(frozen=True)
class DeepClusterOptions(Options):
    """Options of DeepCluster."""

    k: int = setting("auto", "number of clusters; auto is 10000 for ImageNet", least=2, most=MANY, auto=True)
    pca: int = setting(
        "auto",
        "whitened principal components that are clustered, at most as many as the features have; auto is 256",
        least=1,
        most=MANY,
        auto=True,
    )
    reassign: int = setting(
        "auto",
        "epochs between two clusterings; auto is 1, and more where epochs are short",
        least=1,
        most=LONG,
        auto=True,
    )

    def choices(self, settings: Resolved, n: int) -> dict[str, Any]:
        """Clusters of 130 images at ImageNet's size, of about 30 in 3,000 images; components of 20 images or more.

        A new classifier needs some hundred steps, but labels must follow the features: at least ten clusterings.
        """
        reassign = math.ceil(STEPS / max(n // settings.batch_size, 1))
        return {
            "k": auto.pseudo_classes(n, 10_000),
            "pca": min(256, max(n // 20, 2)),
            "reassign": max(min(reassign, settings.epochs // 10), 1),
        }

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:
        """Learning rate, its schedule (constant, as published), and number of clusters."""
        rates: list[dict[str, Any]] = [
            {"lr": settings.lr / 2},
            {"lr": settings.lr * 2},
            {"schedule": "step", "drops": []},
        ]
        return [{}, *rates, {"k": max(self.k // 2, 2)}, {"k": min(2 * self.k, n)}]
