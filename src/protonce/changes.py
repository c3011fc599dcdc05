"""What training has changed in an encoder that started from other weights, seen without labels."""

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protonce import randomness, weights
from protonce.config import Resolved
from protonce.data.loader import Loader
from protonce.data.sources import Source
from protonce.data.views import ImageViews
from protonce.encoder import Encoder, build
from protonce.features import BATCH_SIZE, extract
from protonce.health import effective_rank
from protonce.kmeans import k_means

SAMPLE = 500  # images that are looked at
MEMBERS = 50  # images of the sample in a cluster, on average


@dataclass(frozen=True)
class Look:
    """Statistics of an encoder's centred features that need no labels."""

    same_cluster: float  # share of the images of which two random views are in the same cluster
    effective_rank: float


@dataclass(frozen=True)
class Changes:
    """An encoder before and after training."""

    before: Look
    after: Look
    distance: float  # ‖θ - θ_start‖ / ‖θ_start‖, of the backbone

    def words(self, init: str, out: Path) -> str:
        """In a sentence; no more than is known without labels.

        Args:
            init: the weights that training started from.
            out: the run folder.
        """
        shares = [f"{100 * look.same_cluster:.0f} %" for look in (self.before, self.after)]
        ranks = [f"{look.effective_rank:.0f}" for look in (self.before, self.after)]
        old = shlex.quote(init) + ("" if Path(init).is_dir() else ", once it is imported")
        return (
            f"since the start, the backbone's weights changed by {100 * self.distance:.2g} % (relative L2 norm); "
            f"two views of an image fall into the same cluster for {shares[1]} of the images (before: {shares[0]}); "
            f"effective rank of the features {ranks[1]} (before: {ranks[0]}); only labels can tell whether that is "
            f"better: compare protonce evaluate {shlex.quote(str(out))} knn with that of {old}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For changes.json."""
        return dataclasses.asdict(self)


def changes(encoder: Encoder, source: Source, settings: Resolved) -> Changes:
    """Compare an encoder with the weights that it started from.

    Args:
        encoder: after training.
        source: the training images, of which a sample is looked at.
        settings: of the training, with `init`.

    Raises:
        UserError: the weights can no longer be loaded.
    """
    start = build(settings)
    weights.start_from(settings.init, start)
    start.autocast = encoder.autocast
    chosen = torch.randperm(len(source), generator=randomness.generator(settings.seed, "changes"))[:SAMPLE]
    loader = Loader(
        source.subset(chosen.sort().values.numpy()),
        ImageViews(settings),
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
    """‖θ - θ_start‖ / ‖θ_start‖ over the parameters of the start; 0 if these are 0."""
    ends = dict(end.named_parameters())
    pairs = [(p.cpu().double(), ends[name].cpu().double()) for name, p in start.named_parameters()]
    moved = sum(float((q - p).square().sum()) for p, q in pairs)
    length = sum(float(p.square().sum()) for p, _ in pairs)
    return float((moved / length) ** 0.5) if length else 0.0
