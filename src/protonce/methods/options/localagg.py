"""Options of local aggregation."""

from dataclasses import dataclass
from typing import Any

from protonce.config import LONG, MANY, Resolved
from protonce.fields import setting
from protonce.methods.options import register
from protonce.methods.options.bank import InstanceOptions


@register(
    "localagg",
    "Local Aggregation",
    "InstDisc, then close neighbours against background neighbours in the memory bank",
    "protonce.methods.localagg:LocalAgg",
    paper=("LocalAgg", "LA"),
)
@dataclass(frozen=True)
class LocalAggOptions(InstanceOptions):
    """Options of local aggregation; those of InstDisc are for its warm-up."""

    background: int = setting("auto", "k, number of background neighbours B_i", least=1, most=MANY, auto=True)
    clusterings: int = setting(10, "H, number of clusterings whose clusters make up C_i", least=1, most=1000)
    close_clusters: int = setting("auto", "m, number of clusters in each clustering", least=1, most=MANY, auto=True)
    warmup_epochs: int = setting("auto", "first epochs with InstDisc only", least=0, most=LONG, auto=True)

    def choices(self, settings: Resolved, n: int) -> dict[str, Any]:
        """The published numbers at ImageNet's size; clusters are smaller on less data, and warm-up is longer.

        Half of the images are background where there are few. A cluster has 43 images on ImageNet, 9 of 3,000 images
        and 6 of 500, because there are fewer alike. Warm-up is a twentieth of the epochs, the published 10 of 200, but
        500 steps, before which neighbours mean little; at most half.
        """
        clusters = int(float(f"{30_000 * (n / 1_281_167) ** 0.75:.2g}"))
        steps = round(500 / max(n // settings.batch_size, 1))  # in epochs
        return {
            **super().choices(settings, n),
            "background": min(4096, n // 2),
            "close_clusters": max(clusters, 2),
            "warmup_epochs": min(max(round(settings.epochs / 20), steps), settings.epochs // 2),
        }

    def notes(self, settings: Resolved) -> list[str]:
        """Warm-up that lasts for the whole training."""
        if self.warmup_epochs < settings.epochs:
            return []
        return [f"warm-up takes {self.warmup_epochs} of {settings.epochs} epochs, so neighbours are never used"]

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:
        """Learning rate, temperature, and the number of background and of close neighbours."""
        return [
            {},
            {"lr": settings.lr / 2},
            {"lr": settings.lr * 2},
            {"tau": settings.tau / 2},
            {"background": max(self.background // 2, 1)},
            {"close_clusters": min(2 * self.close_clusters, n)},
        ]
