"""What training has changed in an encoder that started from other weights, seen without labels."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protonce import randomness, weights
from protonce.config import Resolved
from protonce.data.loader import Loader
from protonce.data.sources import Source
from protonce.data.views import ImageViews, Views
from protonce.encoder import Encoder, build
from protonce.features import BATCH_SIZE, extract
from protonce.health import effective_rank
from protonce.kmeans import k_means

SAMPLE = 1000  # images that are looked at
MEMBERS = 50  # images of the sample in a cluster, on average
WHERE = "docs/adapt.md"


@dataclass(frozen=True)
class Look:
    """An encoder, by its features of images without labels, less their mean."""

    same_cluster: float  # share of the images of which two random views are in the same cluster
    effective_rank: float


@dataclass(frozen=True)
class Changes:
    """An encoder before and after training."""

    before: Look
    after: Look
    distance: float  # ‖θ - θ_start‖ / ‖θ_start‖, of the backbone

    @property
    def words(self) -> str:
        """In a sentence; no more than is known without labels."""
        shares = [f"{100 * look.same_cluster:.0f} %" for look in (self.before, self.after)]
        ranks = [f"{look.effective_rank:.0f}" for look in (self.before, self.after)]
        return (
            f"since the start: the weights of the backbone have moved by {100 * self.distance:.2g} % of their length; "
            f"two views of an image are in the same cluster for {shares[1]} of the images, before for {shares[0]}; "
            f"effective rank of the features {ranks[1]}, before {ranks[0]}; whether that is better only labels tell: "
            f"`protonce evaluate RUN knn` with the new run and with the old one ({WHERE})"
        )

    def as_dict(self) -> dict[str, Any]:
        """For change.json."""
        return dataclasses.asdict(self)


def changes(encoder: Encoder, source: Source, settings: Resolved, views: Views | None = None) -> Changes:
    """Compare an encoder with the weights that it started from.

    Args:
        encoder: after training.
        source: the training images, of which a sample is looked at.
        settings: of the training, with `init`.
        views: the user's own; None: the settings'.

    Raises:
        UserError: the weights can no longer be loaded.
    """
    start = build(settings)
    weights.start_from(settings.init, start)
    chosen = torch.randperm(len(source), generator=randomness.generator(settings.seed, "changes"))[:SAMPLE]
    loader = Loader(
        source.subset(chosen.sort().values.numpy()),
        views or ImageViews(settings),
        seed=settings.seed,
        workers=settings.workers,
        device=settings.device,
        replaced=lambda *_: None,  # has been reported
    )
    before, after = (_look(model, loader, settings) for model in (start.to(loader.device), encoder))
    return Changes(before, after, distance(start.backbone, encoder.backbone))


@torch.no_grad()
def _look(encoder: Encoder, loader: Loader, settings: Resolved) -> Look:
    was_training = encoder.training
    encoder.eval()
    plain = extract(encoder.features, loader)  # (n, D)
    order = torch.arange(len(loader))
    # Two views that training has not seen: of epochs that it does not have.
    first, second = (
        torch.cat([encoder.features(x[0]).cpu() for x, _ in loader.train(order, epoch, BATCH_SIZE, every=True)])
        for epoch in (settings.epochs, settings.epochs + 1)
    )
    encoder.train(was_training)
    mean = plain.mean(dim=0)
    v, v1, v2 = (F.normalize(x - mean, dim=1) for x in (plain, first, second))
    generator = randomness.generator(settings.seed, "clusters of changes")
    k = max(len(v) // MEMBERS, 2)
    means = k_means(v, k, generator=generator, engine=settings.kmeans_engine).means
    same = (_nearest(v1, means) == _nearest(v2, means)).double().mean()
    return Look(float(same), effective_rank(v) if v.any() else 1.0)  # else all features are equal


def _nearest(x: Tensor, means: Tensor) -> Tensor:
    return torch.cdist(x, means).argmin(dim=1)


@torch.no_grad()
def distance(start: nn.Module, end: nn.Module) -> float:
    """‖θ - θ_start‖ / ‖θ_start‖ over all parameters."""
    pairs = [(p.double().cpu(), q.double().cpu()) for p, q in zip(start.parameters(), end.parameters(), strict=True)]
    moved = sum(float((q - p).square().sum()) for p, q in pairs)
    return float((moved / sum(float(p.square().sum()) for p, _ in pairs)) ** 0.5)
