"""k-means: one function, two engines.

faiss is the paper's choice and the faster one on a CPU; torch serves macOS, where faiss and torch clash, and
GPUs without faiss-gpu. Both start from the same centroids and do the same number of Lloyd's iterations.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Engine = Literal["faiss", "torch"]
_BLOCK = 1 << 24  # distances held at once
_SPLIT = 1 / 1024  # how far the halves of a split cluster move apart, relative to its centroid (as faiss does)


class KMeans(NamedTuple):
    """What k-means found. No cluster is empty, so there may be fewer than were asked for."""

    means: Tensor  # (k, d)
    assignment: Tensor  # (n,)
    objective: float  # sum of squared distances to the assigned mean


def k_means(
    points: Tensor,
    k: int,
    *,
    generator: torch.Generator,
    iterations: int = 20,
    starts: int = 1,
    init: Tensor | None = None,
    sample: int = 0,
    engine: Engine = "torch",
) -> KMeans:
    """Cluster points into at most k groups by Lloyd's algorithm.

    Args:
        points: (n, d), at least one.
        k: clusters asked for; reduced to the number of distinct points.
        generator: draws the starts.
        iterations: of Lloyd's algorithm, for each start.
        starts: random starts, the best of which is kept. With `init` there is one start.
        init: centroids to start from, (k', d); used where k' is the number of clusters.
        sample: fit the means to this many random points (0: all); all are assigned in the end.
        engine: "faiss" or "torch".

    Raises:
        ValueError: there is no point, or k is below 1.
    """
    if points.ndim != 2 or len(points) == 0 or k < 1:
        raise ValueError(f"k-means needs points (n, d) and k >= 1, got {tuple(points.shape)} and k = {k}")
    points = points.detach().float()
    fitted = points
    if 0 < sample < len(points):
        fitted = points[torch.randperm(len(points), generator=generator)[:sample].to(points.device)]
    distinct = first_of_each(fitted)
    k = min(k, len(distinct))
    lloyd = _lloyd_faiss if engine == "faiss" else _lloyd_torch

    best: KMeans | None = None
    for _ in range(1 if init is not None and len(init) == k else starts):
        start = init
        if start is None or len(start) != k:
            draw = torch.randperm(len(distinct), generator=generator)[:k].to(points.device)
            start = fitted[distinct[draw]]
        found = _finish(points, lloyd(fitted, start.to(points), iterations), engine)
        if best is None or found.objective < best.objective:
            best = found
    assert best is not None
    return best


def first_of_each(points: Tensor) -> Tensor:
    """Indices of the first of each group of identical points, in order; (distinct,)."""
    _, first = np.unique(_shadow(points), return_index=True)
    return torch.from_numpy(np.sort(first)).to(points.device)


def places(points: Tensor) -> Tensor:
    """For each point a number that it shares with the points identical to it, and no others; (n,)."""
    _, place = np.unique(_shadow(points), return_inverse=True)
    return torch.from_numpy(place).to(points.device)


def _shadow(points: Tensor) -> NDArray[np.float64]:
    """Projections to a line, (n,): those of two different points are alike with probability zero.

    So identical points are found without sorting rows, which would be slow.
    """
    direction = torch.randn(points.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shadow: NDArray[np.float64] = torch.cat([b.cpu().double() @ direction for b in points.split(1 << 16)]).numpy()
    return shadow


def nearest(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance to the nearest centroid, and which it is; (n,) each. Blockwise, so memory stays small."""
    distances, indices = [], []
    squares = centroids.square().sum(dim=1)  # (k,)
    for block in points.split(max(_BLOCK // len(centroids), 1)):
        scores = torch.addmm(squares, block, centroids.T, alpha=-2)  # (b, k)  |x - c|² without |x|²
        value, which = scores.min(dim=1)
        distances.append((value + block.square().sum(dim=1)).clamp_min(0))
        indices.append(which)
    return torch.cat(distances), torch.cat(indices)


def _finish(points: Tensor, centroids: Tensor, engine: Engine) -> KMeans:
    """Assign all points, drop clusters without members, and make each centroid the mean of its members."""
    _, assignment = _nearest_faiss(points, centroids) if engine == "faiss" else nearest(points, centroids)
    _, assignment = assignment.unique(return_inverse=True)
    k = int(assignment.max()) + 1
    means = _means(points, assignment, k)
    objective = (points - means[assignment]).square().sum().item()
    return KMeans(means, assignment, objective)


def _means(points: Tensor, assignment: Tensor, k: int) -> Tensor:
    """Mean of each cluster's members; zero where there is none; (k, d)."""
    sums = points.new_zeros(k, points.shape[1]).index_add_(0, assignment, points)
    return sums / torch.bincount(assignment, minlength=k).clamp_min(1)[:, None]


def _lloyd_torch(points: Tensor, centroids: Tensor, iterations: int) -> Tensor:
    for _ in range(iterations):
        _, assignment = nearest(points, centroids)
        counts = torch.bincount(assignment, minlength=len(centroids))
        centroids = _means(points, assignment, len(centroids))
        # An empty cluster takes half of the largest: both get its centroid, moved a little apart.
        for empty in (counts == 0).nonzero().flatten().tolist():
            largest = int(counts.argmax())
            sign = torch.ones_like(centroids[largest])
            sign[1::2] = -1
            centroids[empty] = centroids[largest] * (1 + _SPLIT * sign)
            centroids[largest] = centroids[largest] * (1 - _SPLIT * sign)
            counts[empty] = counts[largest] // 2
            counts[largest] -= counts[empty]
    return centroids


def _lloyd_faiss(points: Tensor, centroids: Tensor, iterations: int) -> Tensor:
    import faiss

    solver: Any = faiss.Kmeans(
        points.shape[1],
        len(centroids),
        niter=iterations,
        min_points_per_centroid=1,
        max_points_per_centroid=len(points),
    )
    solver.train(_numpy(points), init_centroids=_numpy(centroids))
    return torch.from_numpy(solver.centroids).to(points)


def _nearest_faiss(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    import faiss

    index: Any = faiss.IndexFlatL2(points.shape[1])
    index.add(_numpy(centroids))
    distances, assignment = index.search(_numpy(points), 1)
    return torch.from_numpy(distances[:, 0]).to(points), torch.from_numpy(assignment[:, 0]).to(points.device)


def _numpy(points: Tensor) -> Any:
    return np.ascontiguousarray(points.cpu().numpy(), dtype=np.float32)
