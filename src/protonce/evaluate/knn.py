"""k-nearest-neighbour classification on frozen features (section 4.3)."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from protonce.data.sources import random_order
from protonce.errors import UserError
from protonce.evaluate.task import Metrics, Outcome, Task, single_labels
from protonce.ties import COSINE, first_of_highest, highest

_BLOCK = 1 << 25  # similarities held at once
CANDIDATES = (1, 5, 10, 20, 50, 100, 200)  # candidates for the number of neighbours
TRIED = 10_000  # training images on which to choose k, at most


def knn_accuracy(
    train: Tensor,
    train_labels: Sequence[str],
    test: Tensor,
    test_labels: Sequence[str],
    k: int = 20,
    tau: float = 0.1,
) -> float:
    """Share of test images whose label wins the vote of their k nearest training images.

    Similarity is the cosine, and a neighbour's vote has weight exp(v·v'/τ) (section 4.3 of the paper). If two labels
    have equal votes, the first in alphabetical order wins.

    Args:
        train: features of images with known labels, (n, D).
        train_labels: n of them.
        test: features, (q, D).
        test_labels: q of them.
        k: number of neighbours, at most n.
        tau: temperature of the weights.
    """
    names, codes = np.unique(np.asarray(train_labels), return_inverse=True)
    similarity, neighbour = neighbours(train, test, k)
    winner = vote(similarity, torch.from_numpy(codes)[neighbour], len(names), tau)
    return float((names[winner.numpy()] == np.asarray(test_labels)).mean())


def choose_k(
    bank: Tensor, queries: Tensor, labels: Sequence[str], tau: float, chosen: NDArray[np.int64]
) -> dict[int, float]:
    """Leave-one-out accuracy of each candidate k on the training images.

    Args:
        bank: features to search for neighbours, (n, D).
        queries: features of the same images, in the same order, (n, D).
        labels: n of them.
        tau: temperature of the weights.
        chosen: indices of the images to leave out, one at a time.
    """
    names, codes = np.unique(np.asarray(labels), return_inverse=True)
    known = torch.from_numpy(codes)
    candidates = [k for k in CANDIDATES if k < len(bank)]
    left_out = torch.from_numpy(chosen)
    similarity, neighbour = neighbours(
        bank, queries[left_out], candidates[-1], left_out
    )  # one search for all candidates
    return {
        k: float((vote(similarity[:, :k], known[neighbour[:, :k]], len(names), tau) == known[left_out]).double().mean())
        for k in candidates
    }


def best_k(accuracies: dict[int, float]) -> int:
    """The number of neighbours with the highest accuracy; the smallest of several."""
    return max(accuracies, key=lambda k: (accuracies[k], -k))


def neighbours(bank: Tensor, queries: Tensor, k: int, left_out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cosine similarity and index of the k most similar rows of the bank, most similar first; (q, k) each.

    Of rows that are equally similar up to rounding the first in the bank comes first, so the first k' of k neighbours
    are the k' nearest. The search is exact and runs in blocks: it needs memory for the unit vectors of bank and queries
    and for one block.

    Args:
        bank: (n, D).
        queries: (q, D).
        k: number of neighbours; n if there are fewer rows.
        left_out: for each query the index of a row to exclude, (q,); None: exclude none.
    """
    unit = F.normalize(bank, dim=1)
    found = []
    for rows in torch.arange(len(queries)).split(max(_BLOCK // len(bank), 1)):
        similarity = F.normalize(queries[rows], dim=1) @ unit.T  # (b, n)
        if left_out is not None:
            similarity[torch.arange(len(rows)), left_out[rows]] = -torch.inf
        position = highest(similarity, min(k, len(bank)), COSINE, _BLOCK)  # (b, k)
        found.append((similarity.gather(1, position), position))
    values, positions = zip(*found, strict=True)
    return torch.cat(values), torch.cat(positions)


def vote(similarity: Tensor, labels: Tensor, classes: int, tau: float) -> Tensor:
    """The label with the most votes, where a neighbour's vote has weight exp(v·v'/τ); (q,).

    Of labels whose votes are equal up to rounding the first wins.

    Args:
        similarity: of each neighbour, (q, k).
        labels: of each neighbour, (q, k), integers from 0.
        classes: number of labels.
        tau: τ.
    """
    nearest = similarity.max(dim=1, keepdim=True).values
    weight = torch.exp((similarity - nearest) / tau)  # a common factor changes no vote and keeps exp in range
    rounding = COSINE - math.expm1(-COSINE / tau)  # relative rounding error of a vote
    winners = []
    for rows in torch.arange(len(labels)).split(max(_BLOCK // classes, 1)):
        votes = weight.new_zeros(len(rows), classes).scatter_add_(1, labels[rows], weight[rows])
        most = votes.amax(dim=1)
        winners.append(torch.from_numpy(first_of_highest(votes.numpy(), (rounding * most).numpy())))
    return torch.cat(winners)


def protocol(task: Task) -> Outcome:
    """Evaluate kNN on backbone features, and as in the paper: v = f_θ(x) against the momentum bank v' = f_θ'(x)."""
    options, labels = task.options, single_labels(task.train)
    if options.neighbours != "auto" and options.neighbours > len(labels):
        raise UserError(f"--neighbours is {options.neighbours}, but there are only {len(labels)} training images")
    chosen = np.sort(random_order(len(labels), "kNN left out", options.seed)[:TRIED])
    spaces = {}
    (backbone, query, bank), (backbone_test, query_test) = (
        task.features(task.train, "backbone", "query", "momentum"),
        task.features(task.test, "backbone", "query"),
    )
    spaces["accuracy"] = (backbone, backbone, backbone_test)
    spaces["momentum_accuracy"] = (bank, query, query_test)
    metrics: Metrics = {}
    settings = {}
    for metric, (known, asking, tested) in spaces.items():
        k = options.neighbours
        with task.steps.doing(f"neighbours for {metric}"):
            if k == "auto":
                k = best_k(choose_k(known, asking, labels, options.tau, chosen))
            metrics[metric] = knn_accuracy(known, labels, tested, single_labels(task.test), k, options.tau)
        settings[f"neighbours of {metric}"] = k
    return Outcome(
        metrics,
        "accuracy: pooled backbone features of the query encoder; momentum_accuracy: embeddings of the query encoder "
        "against those of the momentum encoder; plain views",
        settings,
        notes=[f"neighbours: {', '.join(map(str, settings.values()))}"],
    )
