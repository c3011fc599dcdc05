"""Which images to label first: typical ones of all kinds, none twice."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from protonce import randomness
from protonce.evaluate.knn import neighbours
from protonce.kmeans import k_means, originals
from protonce.label.space import directions
from protonce.ties import first_of_highest

Strategy = Literal["typiclust", "maxherding"]
NEIGHBOURS = 20  # of which the mean distance says how typical an image is
ROUNDING = 1e-5  # of a mean distance of unit vectors
BLOCK = 1 << 24  # kernel values held at once


def suggest(
    features: Tensor,
    budget: int,
    labelled: Sequence[int],
    strategy: Strategy,
    seed: int,
    left_out: Sequence[int] = (),
) -> list[int]:
    """Images to label next, the most useful first; of images with the same features at most one.

    Args:
        features: of all images, (n, D).
        budget: number of images; fewer are returned if there are no more distinct ones.
        labelled: images that have a label.
        strategy: by `typiclust` or by `max_herding`.
        seed: of k-means.
        left_out: images that are not to be suggested, such as copies of others.
    """
    x = directions(features)
    original = originals(features)
    candidate = original == torch.arange(len(x))  # (n,) the first of identical ones
    candidate[original[torch.tensor(labelled, dtype=torch.long)]] = False
    candidate[torch.tensor(left_out, dtype=torch.long)] = False
    choose = {"typiclust": typiclust, "maxherding": max_herding}[strategy]
    return choose(x, min(budget, int(candidate.sum())), labelled, candidate, seed)


def typiclust(x: Tensor, budget: int, labelled: Sequence[int], candidate: Tensor, seed: int) -> list[int]:
    """TypiClust (Hacohen et al., 2022): the most typical image of each cluster in which none is labelled.

    There are as many clusters as labelled images and images to choose. The largest uncovered cluster comes first; if
    there are too few, those with the fewest labelled and chosen images.

    Args:
        x: unit vectors, (n, D).
        budget: number of images to choose, at most that of the candidates.
        labelled: images that have a label.
        candidate: which images may be chosen, (n,).
        seed: of k-means.
    """
    k = min(len(labelled) + budget, len(x))
    found = k_means(x, k, generator=randomness.generator(seed, "suggest")).assignment  # (n,)
    size = torch.bincount(found)
    covered = torch.bincount(found[torch.tensor(labelled, dtype=torch.long)], minlength=len(size))
    left = candidate.clone()
    chosen: list[int] = []
    typicality: dict[int, Tensor] = {}  # of the members of a cluster
    while len(chosen) < budget:
        open_ = torch.bincount(found[left], minlength=len(size)) > 0
        order = sorted(open_.nonzero()[:, 0].tolist(), key=lambda c: (int(covered[c]), -int(size[c]), c))
        cluster = order[0]
        members = (found == cluster).nonzero()[:, 0]
        if cluster not in typicality:
            typicality[cluster] = typical(x[members].double())  # so that rounding is far below `ROUNDING`
        value = typicality[cluster].masked_fill(~left[members], -torch.inf)
        image = int(members[int(first_of_highest(value.numpy(), ROUNDING))])
        chosen.append(image)
        left[image] = False
        covered[cluster] += 1
    return chosen


def typical(x: Tensor) -> Tensor:
    """How typical each of a cluster's unit vectors (s, D) is: minus the mean distance to the nearest 20; (s,)."""
    k = min(NEIGHBOURS, len(x) - 1)
    if k == 0:
        return x.new_zeros(1)
    similarity, _ = neighbours(x, x, k, left_out=torch.arange(len(x)))  # (s, k)
    return -(2 - 2 * similarity).clamp_min(0).sqrt().mean(dim=1)


def max_herding(x: Tensor, budget: int, labelled: Sequence[int], candidate: Tensor, seed: int) -> list[int]:  # noqa: ARG001
    """MaxHerding (Bae et al., 2024): greedily the image that increases Σ_i max_{j in labelled} k(x_i, x_j) most.

    The kernel is k(x, y) = exp(-‖x - y‖²). Gains can only fall while images are chosen, so that only those of the best
    are computed again.

    Args:
        x: unit vectors, (n, D).
        budget: number of images to choose, at most that of the candidates.
        labelled: images that have a label.
        candidate: which images may be chosen, (n,).
        seed: not used; nothing is random.
    """
    x = x.double()
    covered = x.new_zeros(len(x))  # max_j k(x_i, x_j), (n,)
    for image in labelled:
        covered = torch.maximum(covered, _kernel(x, x[image, None])[:, 0])
    blocks = torch.arange(len(x)).split(max(BLOCK // len(x), 1))
    bound = torch.cat([_gain(x, x[rows], covered) for rows in blocks])  # of the gains, (n,)
    bound[~candidate] = -torch.inf
    rounding = 1e-9 * len(x)
    chosen: list[int] = []
    while len(chosen) < budget:
        image = int(first_of_highest(bound.numpy(), rounding))
        gain = _gain(x, x[image, None], covered)[0]
        before, bound[image] = bound[image].clone(), gain
        if gain >= before - rounding or image == int(first_of_highest(bound.numpy(), rounding)):
            chosen.append(image)
            covered = torch.maximum(covered, _kernel(x, x[image, None])[:, 0])
            bound[image] = -torch.inf
    return chosen


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """exp(-‖x - y‖²) of unit vectors (n, D) and (m, D); (n, m)."""
    return torch.exp(2 * (x @ y.T) - 2)


def _gain(x: Tensor, y: Tensor, covered: Tensor) -> Tensor:
    """What each of y (m, D) would add to the coverage; (m,)."""
    return (_kernel(x, y) - covered[:, None]).clamp_min(0).sum(dim=0)
