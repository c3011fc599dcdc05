"""Scores of a system on images that were not used in training: one code path for every row of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from protonce.compare.names import SCORES
from protonce.data.sources import Source
from protonce.evaluate.clustering import ami
from protonce.evaluate.knn import knn_accuracy
from protonce.evaluate.protocols import evaluate
from protonce.run import Run

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


def pixels(views: Tensor) -> Tensor:
    """The `encoder` of the raw-pixel row: views (B, 3, h, w) to (B, 3hw)."""
    return torch.flatten(views, start_dim=1)


def score_run(run: Run, train: Source, test: Source, names: Sequence[str]) -> dict[str, float]:
    """The scores that are asked for, of the pooled backbone features of the query encoder.

    Args:
        run: a finished run.
        train: labelled images, those it was trained on.
        test: other labelled images.
        names: of `SCORES`.
    """
    found: dict[str, float] = {}
    if {"knn", "ami"} & {*names}:
        known, asked = (run.features(source, "backbone")[0] for source in (train, test))
        row = score(run.title, known, asked, train, test)
        found = {"knn": row.knn, "ami": row.ami}
    for protocol in dict.fromkeys(SCORES[name].protocol for name in names):
        if protocol:
            wanted = [name for name in names if SCORES[name].protocol == protocol]
            found |= _by_protocol(run, protocol, train, test, wanted)
    return {name: found[name] for name in names}


def _by_protocol(run: Run, protocol: str, train: Source, test: Source, names: Sequence[str]) -> dict[str, float]:
    options: dict[str, Any] = {}
    if protocol == "lowshot":
        options = {"shots": [int(name.removeprefix("shot_")) for name in names]}
    elif protocol == "semisup":
        options = {"shares": [int(name.removeprefix("tuned_")) / 100 for name in names]}
    result = evaluate(run, protocol, train=train, test=test, quiet=True, again=False, **options)
    metrics = {name: result["metrics"][SCORES[name].metric] for name in names}
    return {name: value["mean"] if isinstance(value, dict) else value for name, value in metrics.items()}
