"""Shared by the examples for data other than images: data set, random numbers, split, and scores on held-out items."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protonce import Run
from protonce.data.views import Samples
from protonce.evaluate.clustering import ami
from protonce.evaluate.knn import knn_accuracy
from protonce.features import extract

NEIGHBOURS = 20


class Items:
    """The minimal data set for `protonce.train`: a length and an item by index. Labels are only used for the scores."""

    def __init__(self, values: NDArray[Any], labels: NDArray[Any]) -> None:
        self.values, self.labels = values, labels

    def __len__(self) -> int:
        return len(self.values)

    def load(self, i: int) -> Any:
        return self.values[i]


def split(values: NDArray[Any], labels: NDArray[Any], seed: int) -> tuple[Items, Items]:
    """Split at random into two thirds for training and one third for testing."""
    order = np.random.default_rng(seed).permutation(len(values))
    train, test = np.split(order, [2 * len(values) // 3])
    return Items(values[train], labels[train]), Items(values[test], labels[test])


def uniform(samples: Samples, purpose: str, *shape: int) -> Tensor:
    """Uniform random numbers in [0, 1]; (B, *shape) float32, on the device of the data.

    They depend only on seed, purpose, epoch and item. Views use them instead of torch.rand, so that runs are
    reproducible and can be resumed bit-exactly.
    """
    return _draw(samples, purpose, shape).float().to(samples.data.device)


def normal(samples: Samples, purpose: str, *shape: int) -> Tensor:
    """Standard normal random numbers, generated in the same way; (B, *shape)."""
    noise = torch.special.ndtri(_draw(samples, purpose, shape))  # float64: a float32 could round to 1, giving inf
    return noise.float().to(samples.data.device)


def _draw(samples: Samples, purpose: str, shape: Sequence[int]) -> Tensor:
    return torch.from_numpy(samples.uniform(purpose, math.prod(shape))).view(-1, *shape)  # (B, *shape) float64


class Score(NamedTuple):
    """Quality of features, measured with the labels of the test items."""

    knn: float  # accuracy of kNN on the training items, k = 20, in percent
    ami: float  # of k-means with one cluster per class


def compare(
    run: Run, untrained: nn.Module, raw: Sequence[Callable[[Tensor], Tensor]], train: Items, test: Items
) -> dict[str, Score]:
    """Print and return the scores of raw features, of the encoder before training, and of PCL.

    `raw` lists one or more kinds of raw features, each a function from plain views (B, ...) to (B, D). Their score is
    the best over all kinds, and for kNN also the better of k = 1 and k = 20.
    """
    rows = {
        "raw features": raw,
        "encoder before training": [untrained.eval()],
        "PCL": [run.encoders[0].features],  # the same as `run.embed(test).features`
    }
    known, unseen = run.loader(train), run.loader(test)
    labels, truth = known.source.labels, unseen.source.labels
    assert labels is not None
    assert truth is not None
    print(f"\n{f'{len(test)} test items':<32} {'kNN %':>7} {'AMI':>7}")
    scores = {}
    for name, forms in rows.items():
        features = [(extract(encode, known), extract(encode, unseen)) for encode in forms]  # (n, D) and (q, D)
        neighbours = (1, NEIGHBOURS) if name == "raw features" else (NEIGHBOURS,)
        knn = max(knn_accuracy(bank, labels, queries, truth, k=k) for bank, queries in features for k in neighbours)
        scores[name] = Score(100 * knn, max(ami(queries, truth) for _, queries in features))
        print(f"{name:<32} {scores[name].knn:>7.1f} {scores[name].ami:>7.3f}")
    return scores
