"""The E-step: cluster momentum features into prototypes at each granularity (algorithm 1, lines 4 to 8)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from protonce import randomness
from protonce.config import Resolved
from protonce.kmeans import Engine, faiss_has_gpu, k_means, nearest


@dataclass(frozen=True)
class Prototypes:
    """C^m: the prototypes of one granularity."""

    centroids: Tensor  # c, (k, d), L2-normalised
    means: Tensor  # the k-means centroids before normalisation, (k, d); may initialise the next E-step
    assignment: Tensor  # s, (n,): the prototype of each image
    concentration: Tensor  # φ, (k,)

    @property
    def percentiles(self) -> list[float]:
        """Minimum, 10th, 50th, 90th percentile and maximum of φ."""
        marks = torch.quantile(self.concentration.float().cpu(), torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0]))
        return [float(v) for v in marks]

    @property
    def occupied(self) -> "Prototypes":
        """Those that have images; with the setting `kmeans_init` "published" some may have none."""
        used, assignment = self.assignment.unique(return_inverse=True)
        if len(used) == len(self.centroids):
            return self
        return Prototypes(self.centroids[used], self.means[used], assignment, self.concentration[used])

    def to(self, device: torch.device | str) -> "Prototypes":
        """The same prototypes on another device."""
        return Prototypes(*(t.to(device) for t in (self.centroids, self.means, self.assignment, self.concentration)))


def e_step(
    features: Tensor,
    clusters: Sequence[int],
    *,
    tau: float,
    generator: torch.Generator,
    alpha: float = 10.0,
    estimate: bool = True,
    clamp: bool = True,
    identical: Literal["largest", "smallest"] = "largest",
    iterations: int = 20,
    starts: int = 1,
    sample: int = 0,
    init: Sequence[Tensor] | None = None,
    seeds: Sequence[int] | None = None,
    engine: Engine = "torch",
) -> list[Prototypes]:
    """Cluster V' = f_θ'(X) at each granularity and estimate the concentration around each prototype.

    Args:
        features: v' of all images, (n, d), L2-normalised.
        clusters: K = {k_m}. There are fewer prototypes if there are fewer distinct features than k_m.
        tau: the mean of φ.
        generator: for the random starts of k-means.
        alpha: smooths φ of small clusters, eq. 12.
        estimate: φ by eq. 12; False: φ = τ for every prototype (fig. 3a).
        clamp: clamp φ to its 10th and 90th percentile.
        identical: φ of a cluster of identical images, see `concentration`.
        iterations: of k-means.
        starts: random starts of k-means, of which the best is used.
        sample: number of random images to which k-means is fitted; 0: all.
        init: initial means of each granularity; None: random images.
        seeds: of the random starts of each granularity, as in the published code; None: they are drawn by `generator`.
        engine: of k-means.
    """
    prototypes = []
    for m, k in enumerate(clusters):
        found = k_means(  # C^m = k-means(V', k_m)
            features,
            k,
            generator=generator,
            iterations=iterations,
            starts=starts,
            sample=sample,
            init=init[m] if init else None,
            seed=seeds[m] if seeds else None,
            engine=engine,
        )
        phi = (  # φ_m = Concentration(C^m, V')
            concentration(features, found.means, found.assignment, tau, alpha, clamp=clamp, identical=identical)
            if estimate
            else features.new_full((len(found.means),), tau)
        )
        prototypes.append(Prototypes(F.normalize(found.means, dim=1), found.means, found.assignment, phi))
    return prototypes


def cluster(features: Tensor, settings: Resolved, epoch: int = 0, start: Sequence[Tensor] = ()) -> list[Prototypes]:
    """The E-step with the settings of a run, for its M-steps, for recording clusters, and for imported encoders.

    Args:
        features: v' of all images, (n, d), L2-normalised.
        settings: of the run.
        epoch: from 0; the random starts of k-means depend on it, unless `kmeans_init` is published.
        start: means of the previous E-step, for `kmeans_init` warm; empty: there was none.

    Returns:
        prototypes of each granularity, on the CPU; with `kmeans_init` published, those without images too, which are
        negatives in the published code
    """
    on_device = settings.kmeans_engine == "torch" or (settings.device == "cuda" and faiss_has_gpu())
    found = e_step(
        features.to(settings.device if on_device else "cpu"),
        settings.clusters,
        tau=settings.tau,
        alpha=settings.alpha,
        estimate=settings.concentration == "estimated",
        clamp=settings.phi_clamp == "percentiles",
        identical=settings.phi_of_identical,
        generator=randomness.generator(settings.seed, "k-means", epoch),
        iterations=settings.kmeans_iterations,
        starts=settings.kmeans_starts,
        sample=settings.kmeans_points,
        init=start if start and settings.kmeans_init == "warm" else None,
        seeds=range(len(settings.clusters)) if settings.kmeans_init == "published" else None,
        engine=settings.kmeans_engine,
    )
    return [c.to("cpu") for c in found]


def concentration(
    features: Tensor,
    means: Tensor,
    assignment: Tensor,
    tau: float,
    alpha: float,
    *,
    clamp: bool = True,
    identical: Literal["largest", "smallest"] = "largest",
) -> Tensor:
    """φ of each prototype by eq. 12, clamped to the 10th to 90th percentile and scaled to a mean of τ.

    A cluster of one image takes the largest φ of the set, because its extent is unknown, and so does one without
    images. If no cluster has spread, φ = τ.

    Args:
        features: v', (n, d).
        means: the k-means centroids before normalisation, (k, d).
        assignment: prototype of each image, (n,).
        tau: τ.
        alpha: α.
        clamp: False omits the clamp, which the paper does not mention.
        identical: φ of a cluster of several identical images: "largest", like that of a single image; or "smallest",
            the 0 of eq. 12. Where the clamp does not raise it, it is the smallest φ of the clusters with spread,
            because logits are divided by it.

    Returns:
        (k,)
    """
    k = len(means)
    distance = (features - means[assignment]).norm(dim=1)  # ‖v'_z - c‖, (n,)
    size = torch.bincount(assignment, minlength=k)  # Z, (k,)
    total = distance.new_zeros(k).index_add_(0, assignment, distance)  # Σ_z ‖v'_z - c‖, (k,)
    phi = total / (size * torch.log(size + alpha))  # eq. 12
    spread = total / size > 1e-6  # rounding alone gives about 1e-7 for unit vectors
    if not spread.any():
        return torch.full_like(phi, tau)
    phi = torch.where(spread, phi, phi[spread].max())
    if identical == "smallest":
        phi = phi.masked_fill(~spread & (size > 1), 0.0)
    smallest = phi[spread].min()
    if clamp:
        low, high = torch.quantile(phi, phi.new_tensor([0.1, 0.9])).tolist()
        phi = phi.clamp(low, high)
    phi = torch.where(phi > 0, phi, smallest)
    return phi * (tau / phi.mean())


def parents(fine: Tensor, coarse: Tensor) -> Tensor:
    """The coarse prototype that contains most members of each fine prototype.

    Args:
        fine: assignment of each image to a fine prototype, (n,).
        coarse: assignment of each image to a coarse prototype, (n,).

    Returns:
        (k_fine,)
    """
    columns = int(coarse.max()) + 1
    pairs, counts = np.unique((fine * columns + coarse).cpu().numpy(), return_counts=True)
    pairs = pairs[np.argsort(-counts, kind="stable")]  # most members first; ties go to the smaller index
    _, first = np.unique(pairs // columns, return_index=True)
    return torch.from_numpy(pairs[first] % columns)


def assign(features: Tensor, prototypes: Prototypes) -> tuple[Tensor, Tensor]:
    """Nearest prototype of each feature, and the cosine distance 1 - v'·c to it; (n,) each."""
    # For unit vectors the nearest is the most similar: |v' - c|² = 2 - 2 v'·c.
    squared, which = nearest(features, prototypes.centroids)
    return which, squared / 2
