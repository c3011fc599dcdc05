"""What the examples for data that are not images share: items, draws, a split, and scores on items no training saw."""

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
    """All that `protonce.train` asks of data: a length and an item by its index. Labels are for the scores only."""

    def __init__(self, values: NDArray[Any], labels: NDArray[Any]) -> None:
        self.values, self.labels = values, labels

    def __len__(self) -> int:
        return len(self.values)

    def load(self, i: int) -> Any:
        return self.values[i]


def split(values: NDArray[Any], labels: NDArray[Any], seed: int) -> tuple[Items, Items]:
    """Two thirds to train on, and a third that no training sees."""
    order = np.random.default_rng(seed).permutation(len(values))
    train, test = np.split(order, [2 * len(values) // 3])
    return Items(values[train], labels[train]), Items(values[test], labels[test])


def uniform(samples: Samples, purpose: str, *shape: int) -> Tensor:
    """Numbers from 0 to 1 that depend on seed, purpose, epoch and item alone; (B, *shape) float32, where the data is.

    Views draw from here and never from torch.rand, so that a run can be repeated, and resumed, to the bit.
    """
    return _draw(samples, purpose, shape).float().to(samples.data.device)


def normal(samples: Samples, purpose: str, *shape: int) -> Tensor:
    """The same, of mean 0 and deviation 1; (B, *shape)."""
    noise = torch.special.ndtri(_draw(samples, purpose, shape))  # of a float32 rounded to 1 it would be infinite
    return noise.float().to(samples.data.device)


def _draw(samples: Samples, purpose: str, shape: Sequence[int]) -> Tensor:
    return torch.from_numpy(samples.uniform(purpose, math.prod(shape))).view(-1, *shape)  # (B, *shape) float64


class Score(NamedTuple):
    """What features are worth, by the labels of items that no training saw."""

    knn: float  # accuracy of twenty neighbours among the training items, in percent
    ami: float  # of k-means with as many clusters as there are labels


def compare(
    run: Run, untrained: nn.Module, raw: Sequence[Callable[[Tensor], Tensor]], train: Items, test: Items
) -> dict[str, Score]:
    """The scores of raw features, of the encoder before training and of PCL; printed as a table.

    Raw features may come in several forms, each a function of plain views (B, ...) to (B, D). They get the best number
    of all forms, and the better of one neighbour and twenty.
    """
    rows = {
        "raw features": raw,
        "encoder before training": [untrained.eval()],
        "PCL": [run.encoders[0].features],  # as `run.embed(test).features`
    }
    known, unseen = run.loader(train), run.loader(test)
    labels, truth = known.source.labels, unseen.source.labels
    assert labels is not None
    assert truth is not None
    print(f"\n{len(test)} items that no training saw      kNN %     AMI")
    scores = {}
    for name, forms in rows.items():
        features = [(extract(encode, known), extract(encode, unseen)) for encode in forms]  # (n, D) and (q, D)
        neighbours = (1, NEIGHBOURS) if name == "raw features" else (NEIGHBOURS,)
        knn = max(knn_accuracy(bank, labels, queries, truth, k=k) for bank, queries in features for k in neighbours)
        scores[name] = Score(100 * knn, max(ami(queries, truth) for _, queries in features))
        print(f"{name:<32} {scores[name].knn:>7.1f} {scores[name].ami:>7.3f}")
    return scores
