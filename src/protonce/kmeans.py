"""k-means with two engines, faiss and torch.

faiss is used in the paper and is faster on a CPU; faiss-gpu clusters points on the GPU where they are. torch is for
macOS, where faiss and torch conflict, and for GPUs without faiss-gpu. Both start from the same centroids, unless faiss
draws them, and run the same number of Lloyd's iterations.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Engine = Literal["faiss", "torch"]
_BLOCK = 1 << 24  # distances held at once
_ROWS = 1 << 10  # rows hashed at once, small enough for the cache
_SPLIT = 1 / 1024  # how far the halves of a split cluster move apart, relative to its centroid (as faiss does)


class KMeans(NamedTuple):
    """Result of k-means. Without a `seed`, no cluster is empty, so there may be fewer than requested.

    Identical points are in the same cluster.
    """

    means: Tensor  # (k, d); with a `seed`, the centroids of the last iteration
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
    seed: int | None = None,
) -> KMeans:
    """Cluster points into at most k groups by Lloyd's algorithm.

    Args:
        points: (n, d), at least one.
        k: requested number of clusters; reduced to the number of distinct points.
        generator: for the random starts and the sample.
        iterations: of Lloyd's algorithm, for each start.
        starts: random starts, of which the best is returned, or the first if several are equally good up to rounding;
            ignored if `init` is used.
        init: initial centroids, (k', d); used if k' is the number of clusters.
        sample: number of random points to which the means are fitted (0: all); all points are assigned in the end.
        engine: "faiss" or "torch".
        seed: for the random starts and the sample instead of `generator`, so that equal calls start from the same
            points: with faiss those that it draws itself, as in the published code; with torch the first distinct ones
            in a random order of all. The means are then the centroids of the last iteration, to which the points are
            assigned, as in the published code; some may have no members. None: distinct points, drawn by `generator`,
            and the means of the final clusters.

    Raises:
        ValueError: there are no points, or k is below 1.
    """
    if points.ndim != 2 or len(points) == 0 or k < 1:
        raise ValueError(f"k-means needs points (n, d) and k >= 1, got {tuple(points.shape)} and k = {k}")
    points = points.detach().float()
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
    fitted = points
    if 0 < sample < len(points):
        fitted = points[torch.randperm(len(points), generator=generator)[:sample].to(points.device)]
    original = originals(points)
    distinct = first_of_each(fitted)
    k = min(k, len(distinct))
    if seed is not None and engine == "faiss":
        return _finish(points, original, _faiss_alone(fitted, k, iterations, starts, seed), engine, refit=False)
    lloyd = _lloyd_faiss if engine == "faiss" else _lloyd_torch
    noise = 1e-12 * points.norm().item() ** 2  # rounding error of an objective that should be 0

    best: KMeans | None = None
    for _ in range(1 if init is not None and len(init) == k else starts):
        start = init
        if start is None or len(start) != k:
            if seed is not None:  # the order does not depend on which points are identical
                order = torch.randperm(len(fitted), generator=generator).to(points.device)
                start = fitted[order[first_of_each(fitted[order])[:k]]]
            else:
                draw = torch.randperm(len(distinct), generator=generator)[:k].to(points.device)
                start = fitted[distinct[draw]]
        centroids = lloyd(fitted, start.to(points), iterations)
        found = _finish(points, original, centroids, engine, refit=seed is None)
        if best is None or found.objective < best.objective * (1 - 1e-6) - noise:
            best = found
    assert best is not None
    return best


def first_of_each(points: Tensor) -> Tensor:
    """Sorted indices of the first of each group of identical points; (distinct,)."""
    original = originals(points)
    return (original == torch.arange(len(points), device=points.device)).nonzero()[:, 0]


def originals(points: Tensor) -> Tensor:
    """Index of the first point that is identical to each point; (n,)."""
    _, first, group = np.unique(_hashes(points), return_index=True, return_inverse=True)
    return torch.from_numpy(first[group]).to(points.device)


def _hashes(points: Tensor) -> NDArray[np.uint64]:
    """A 64-bit hash of each row, (n,): different rows share one with a probability of about 2^-58.

    Hashes find identical points without sorting rows, which would be slow. Integer arithmetic modulo 2^64 is exact in
    any order: unlike a projection to a line, the hash of a row does not depend on its position.
    """
    points = points if points.dtype == torch.float64 else points.float()
    bits = np.uint64 if points.dtype == torch.float64 else np.uint32
    rng = np.random.default_rng(0)
    factor, *words = rng.integers(0, 1 << 64, 1 + points.shape[1], dtype=np.uint64) | np.uint64(1)
    found = np.empty(len(points), dtype=np.uint64)
    for i in range(0, len(points), _ROWS):
        block = np.ascontiguousarray(points[i : i + _ROWS].cpu().numpy()) + 0.0  # -0.0 becomes 0.0
        mixed = block.view(bits).astype(np.uint64)  # (b, d)
        # Round numbers and their products end in many zero bits, so the high bits are mixed into the low ones.
        mixed ^= mixed >> np.uint64(32)
        mixed *= factor
        mixed ^= mixed >> np.uint64(32)
        found[i : i + _ROWS] = mixed @ np.array(words, dtype=np.uint64)
    return found


def nearest(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance to, and index of, the nearest centroid; (n,) each. Blockwise, to save memory."""
    distances, indices = [], []
    squares = centroids.square().sum(dim=1)  # (k,)
    for block in points.split(max(_BLOCK // len(centroids), 1)):
        scores = torch.addmm(squares, block, centroids.T, alpha=-2)  # (b, k)  |x - c|² without |x|²
        value, which = scores.min(dim=1)
        distances.append((value + block.square().sum(dim=1)).clamp_min(0))
        indices.append(which)
    return torch.cat(distances), torch.cat(indices)


def _finish(points: Tensor, original: Tensor, centroids: Tensor, engine: Engine, refit: bool) -> KMeans:
    """Assign all points; to `refit`, drop clusters without members, and make each centroid the mean of its members.

    Rounding decides between centroids at the same distance, so identical points take the cluster of the first of them.
    """
    _, assignment = _nearest_faiss(points, centroids) if engine == "faiss" else nearest(points, centroids)
    means, assignment = centroids, assignment[original]
    if refit:
        kept, assignment = assignment.unique(return_inverse=True)
        means = _means(points, assignment, len(kept))
    objective = (points - means[assignment]).square().sum().item()
    return KMeans(means, assignment, objective)


def _means(points: Tensor, assignment: Tensor, k: int) -> Tensor:
    """Mean of each cluster's members; zero if there are none; (k, d)."""
    sums = points.new_zeros(k, points.shape[1]).index_add_(0, assignment, points)
    return sums / torch.bincount(assignment, minlength=k).clamp_min(1)[:, None]


def _lloyd_torch(points: Tensor, centroids: Tensor, iterations: int) -> Tensor:
    for _ in range(iterations):
        _, assignment = nearest(points, centroids)
        counts = torch.bincount(assignment, minlength=len(centroids))
        centroids = _means(points, assignment, len(centroids))
        # An empty cluster takes half of the largest one: both get its centroid, moved slightly apart.
        for empty in (counts == 0).nonzero().flatten().tolist():
            largest = int(counts.argmax())
            sign = torch.ones_like(centroids[largest])
            sign[1::2] = -1
            centroids[empty] = centroids[largest] * (1 + _SPLIT * sign)
            centroids[largest] = centroids[largest] * (1 - _SPLIT * sign)
            counts[empty] = counts[largest] // 2
            counts[largest] -= counts[empty]
    return centroids


def faiss_has_gpu() -> bool:
    """Whether faiss can use a GPU: it is faiss-gpu, and finds one."""
    import faiss

    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0


def _lloyd_faiss(points: Tensor, centroids: Tensor, iterations: int) -> Tensor:
    solver = _faiss_solver(points, len(centroids), niter=iterations)
    solver.train(_numpy(points), init_centroids=_numpy(centroids))
    return torch.from_numpy(solver.centroids).to(points)


def _faiss_alone(points: Tensor, k: int, iterations: int, starts: int, seed: int) -> Tensor:
    """The best centroids of faiss from starts that it draws by the seed; (k, d)."""
    solver = _faiss_solver(points, k, niter=iterations, nredo=starts, seed=seed)
    solver.train(_numpy(points))
    return torch.from_numpy(solver.centroids).to(points)


def _faiss_solver(points: Tensor, k: int, **settings: int) -> Any:
    import faiss

    solver: Any = faiss.Kmeans(
        points.shape[1], k, min_points_per_centroid=1, max_points_per_centroid=len(points), **settings
    )
    solver.index = _flat_index(points)
    return solver


def _flat_index(points: Tensor) -> Any:
    """An index that searches by comparing with all; on the GPU of the points, if they are on one."""
    import faiss

    index = faiss.IndexFlatL2(points.shape[1])
    # Not by the argument `gpu` of faiss.Kmeans, which takes all GPUs: the others belong to other ranks.
    return faiss.index_cpu_to_gpus_list(index, gpus=[points.device.index]) if points.is_cuda else index


def _nearest_faiss(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    index = _flat_index(points)
    index.add(_numpy(centroids))
    distances, assignment = index.search(_numpy(points), 1)
    return torch.from_numpy(distances[:, 0]).to(points), torch.from_numpy(assignment[:, 0]).to(points.device)


def _numpy(points: Tensor) -> Any:
    return np.ascontiguousarray(points.cpu().numpy(), dtype=np.float32)
