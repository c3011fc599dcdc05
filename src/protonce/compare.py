"""Compare systems: one code path for every row of a table."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protonce.data.sources import Source
from protonce.evaluate.clustering import ami
from protonce.evaluate.knn import knn_accuracy

NEIGHBOURS = 20


@dataclass(frozen=True)
class Row:
    """Scores of a system on images that were not used in training."""

    name: str
    knn: float  # accuracy for the finest labels
    ami: float  # of k-means with as many clusters as finest labels, mean of 5 starts


def score(name: str, train: Tensor, test: Tensor, train_source: Source, test_source: Source) -> Row:
    """Score features (n, D) of training images and (q, D) of test images."""
    assert train_source.labels is not None
    assert test_source.labels is not None
    # Raw pixels are often best with one neighbour, so they get the better of two choices of k.
    choices = (1, NEIGHBOURS) if name == "raw-pixels" else (NEIGHBOURS,)
    best = max(knn_accuracy(train, train_source.labels, test, test_source.labels, k=k) for k in choices)
    return Row(name, knn=best, ami=ami(test, test_source.labels))


@dataclass(frozen=True)
class Lead:
    """Paired differences between two systems, one per seed, and whether one leads."""

    mean: float
    std: float  # of the differences, with n - 1
    positive: int
    seeds: int
    leads: bool


def lead(differences: Sequence[float]) -> Lead:
    """A system leads if, over at least 5 seeds, the mean exceeds the standard deviation and 4 of 5 are positive.

    Args:
        differences: of the same score, one per seed, at least two.
    """
    mean, std = statistics.fmean(differences), statistics.stdev(differences)
    positive, seeds = sum(d > 0 for d in differences), len(differences)
    return Lead(mean, std, positive, seeds, leads=seeds >= 5 and mean > std and positive >= 0.8 * seeds)


def pixels(views: Tensor) -> Tensor:
    """The `encoder` of the raw-pixel row: views (B, 3, h, w) to (B, 3hw)."""
    return torch.flatten(views, start_dim=1)
