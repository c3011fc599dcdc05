"""DeepCluster (Caron et al., 2018): cluster the features, and learn to predict the clusters as labels."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protonce import randomness
from protonce.config import Resolved
from protonce.data.views import ViewSpec
from protonce.kmeans import k_means
from protonce.methods.base import Batch, Features, Setup, Term
from protonce.methods.options.deepcluster import DeepClusterOptions
from protonce.methods.pretext import Pretext, class_term

BLOCK = 4096  # images whose features are centred or projected at once
NEGLIGIBLE = 1e-6  # variance of a component, relative to the first, that may be rounding alone


class Classifier(nn.Linear):
    """g_W of eq. 1, with the published initial weights."""

    def reset_parameters(self) -> None:
        """Weights from N(0, 0.01²), no bias."""
        nn.init.normal_(self.weight, std=0.01)
        nn.init.zeros_(self.bias)


class DeepCluster(Pretext):
    """A linear classifier g_W on pooled features f_θ(x), whose labels are clusters of f_θ(x)."""

    Options = DeepClusterOptions
    terms: ClassVar[tuple[str, ...]] = ("cluster",)
    moving_targets: ClassVar[bool] = True
    labels: Tensor  # y, (n,)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.register_buffer("labels", torch.zeros(self.n, dtype=torch.long))
        self.classifier = Classifier(self.query.feature_dim, self.options.k)

    @classmethod
    def views(cls, settings: Resolved, options: Any) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """One view."""
        return (ViewSpec("view"),)

    def e_step(self, epoch: int, features: Features) -> Tensor:
        """Eq. 2: pseudo-labels y of all images, (n,), by k-means. Their order is arbitrary, so g_W starts anew."""
        if epoch % self.options.reassign == 0:
            pooled = features.backbone()  # f_θ(x), (n, D)
            self.labels.copy_(self.context.on_first(lambda: self._cluster(pooled, epoch)))
            self.context.renew(self.classifier, "classifier", epoch)
        return self.labels

    def _cluster(self, pooled: Tensor, epoch: int) -> Tensor:
        s = self.settings
        x = F.normalize(whiten(pooled, self.options.pca), dim=1)  # (n, pca)
        draw = randomness.generator(s.seed, "deepcluster", epoch)
        # An empty cluster takes over a part of another, slightly moved (section 3.3), so that all k have members.
        found = k_means(
            x.to(s.device if s.kmeans_engine == "torch" else "cpu"),
            self.options.k,
            generator=draw,
            iterations=s.kmeans_iterations,
            starts=s.kmeans_starts,
            sample=s.kmeans_points,
            engine=s.kmeans_engine,
        )
        return found.assignment.cpu()

    def sampler(self, epoch: int, state: Tensor) -> Tensor:
        """Images drawn uniformly over the clusters (section 3.3), or the classifier would predict the largest."""
        draw = randomness.generator(self.settings.seed, "cluster draws", epoch)
        size = self.settings.batch_size
        return uniform_draws(state.cpu(), self.n, draw)[: self.steps * size].view(self.steps, size)

    def m_step(self, batch: Batch, state: Tensor) -> tuple[Tensor, dict[str, Term]]:
        """Eq. 1: the classifier predicts the pseudo-labels."""
        (x,) = batch.views
        scores = self.classifier(self.query.features(x))  # g_W(f_θ(x)), (b, k)
        term = class_term(scores, state[batch.index])
        return term.loss, {"cluster": term}


def whiten(x: Tensor, dim: int) -> Tensor:
    """The first principal components of features (n, D), each scaled to variance 1; (n, dim) or fewer columns.

    Fewer if there are fewer dimensions, images, or components whose variance is more than rounding.
    """
    mean = x.double().mean(dim=0)
    blocks = x.split(BLOCK)
    covariance = sum((c.T @ c for c in (block - mean for block in blocks)), torch.zeros(())) / max(len(x) - 1, 1)
    variance, directions = torch.linalg.eigh(covariance)  # ascending; (D,), (D, D)
    kept = variance[-dim:] > NEGLIGIBLE * variance[-1]
    scale = (directions[:, -dim:] / variance[-dim:].clamp_min(torch.finfo(torch.double).tiny).sqrt())[:, kept]
    return torch.cat([((block - mean) @ scale).float() for block in blocks]).flip(1)


def uniform_draws(labels: Tensor, total: int, generator: torch.Generator) -> Tensor:
    """Images in random order, as many of every cluster; (total,).

    Of each of k clusters total // k + 1 images are drawn, with replacement if it has no more than these, and of all of
    them in random order the first `total` are taken: the published sampler.

    Args:
        labels: the cluster of each image, (n,); each of the k occurs.
        total: number of images to draw.
        generator: draws them.
    """
    members = labels.argsort(stable=True).split(labels.bincount().tolist())
    each = total // len(members) + 1
    drawn = [
        own[
            torch.randint(len(own), (each,), generator=generator)
            if len(own) <= each
            else torch.randperm(len(own), generator=generator)[:each]
        ]
        for own in members
    ]
    return torch.cat(drawn)[torch.randperm(each * len(members), generator=generator)[:total]]
