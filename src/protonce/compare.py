"""How systems are compared, everywhere: one code path for every row of a table."""

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
    """A system and its two numbers, on images that no training saw."""

    name: str
    knn: float  # accuracy by the finest labels
    ami: float  # of k-means with as many clusters as there are finest labels, mean of 5 starts


def score(name: str, train: Tensor, test: Tensor, train_source: Source, test_source: Source) -> Row:
    """Compare features (n, D) of training images with those (q, D) of test images."""
    assert train_source.labels is not None
    assert test_source.labels is not None
    # Raw pixels know no neighbourhood beyond the nearest image: they get the better of two chances.
    choices = (1, NEIGHBOURS) if name == "raw-pixels" else (NEIGHBOURS,)
    best = max(knn_accuracy(train, train_source.labels, test, test_source.labels, k=k) for k in choices)
    return Row(name, knn=best, ami=ami(test, test_source.labels))


@dataclass(frozen=True)
class Lead:
    """Paired differences between two systems, one a seed, and whether they make a lead."""

    mean: float
    std: float  # of the differences, with n - 1
    positive: int
    seeds: int
    leads: bool


def lead(differences: Sequence[float]) -> Lead:
    """A lead is: over at least 5 seeds the mean exceeds the standard deviation, and 4 of 5 are positive.

    Args:
        differences: of the same score, by seed, at least two.
    """
    mean, std = statistics.fmean(differences), statistics.stdev(differences)
    positive, seeds = sum(d > 0 for d in differences), len(differences)
    return Lead(mean, std, positive, seeds, leads=seeds >= 5 and mean > std and positive >= 0.8 * seeds)


def pixels(views: Tensor) -> Tensor:
    """The `encoder` of the raw-pixel row: views (B, 3, h, w) to (B, 3hw)."""
    return torch.flatten(views, start_dim=1)
