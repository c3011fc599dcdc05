"""Agreement of labels with clusters of frozen features (table 5), and with the run's own clusters over training."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from protonce import agreement, randomness
from protonce.agreement import Table
from protonce.errors import UserError
from protonce.evaluate.task import Metrics, Outcome, Task, over_draws, single_labels
from protonce.features import WORDS
from protonce.kmeans import Engine, k_means
from protonce.reported import CLUSTERS
from protonce.run import Run, read_assignments

MANY = 1_000_000  # images; the paper clusters ImageNet's training images

SCORES: dict[str, Callable[[Table], float]] = {
    "ami": agreement.ami,
    "nmi": agreement.nmi,
    "ari": agreement.ari,
    "purity": agreement.purity,
    "accuracy": agreement.hungarian_accuracy,
}


def clusterings(
    features: Tensor, k: int, starts: int, seed: int = 0, engine: Engine = "torch"
) -> list[NDArray[np.int64]]:
    """k-means on L2-normalised features from several random starts; the cluster of each image, (n,) per start."""
    points = F.normalize(features, dim=1)
    return [
        k_means(
            points, k, generator=randomness.generator(seed, "ami", start), iterations=50, engine=engine
        ).assignment.numpy()
        for start in range(starts)
    ]


def ami(features: Tensor, labels: Sequence[str], starts: int = 5, seed: int = 0) -> float:
    """Adjusted mutual information between labels and k-means on the features, k being the number of labels.

    Args:
        features: (n, D); L2-normalised here.
        labels: n of them.
        starts: random starts of k-means over which the score is averaged.
        seed: of the starts.
    """
    found = clusterings(features, len(set(labels)), starts, seed)
    return float(np.mean([agreement.ami(agreement.table(clusters, labels)) for clusters in found]))


def default_clusters(dataset: str, labels: Sequence[str]) -> int:
    """Default k: the number of labels; for the training images of ImageNet the paper's 25,000 (table 5).

    Args:
        dataset: name of the data set, see `Task.dataset_name`.
        labels: of the images.
    """
    return CLUSTERS if len(labels) >= MANY and dataset == "ImageNet" else len(set(labels))


def over_training(
    run: Run, labels: Sequence[str], epochs: Sequence[int], score: Callable[[Table], float] = agreement.ami
) -> list[list[float]]:
    """Score of the run's clusters with its training images' labels, for each granularity at each epoch (from 1)."""
    known, codes = _labelled(labels)
    found = [
        [score(agreement.table(clusters[known], codes)) for clusters in read_assignments(run.path, epoch)]
        for epoch in epochs
    ]
    return [list(levels) for levels in zip(*found, strict=True)]


def _labelled(labels: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the images with a label, and their classes as integers; an empty label is no label."""
    known = np.flatnonzero(np.asarray(labels) != "")
    return known, np.unique(np.asarray(labels)[known], return_inverse=True)[1]


def protocol(task: Task) -> Outcome:
    """k-means on the features of one data set; AMI over training from the assignments recorded by the run."""
    options, labels = task.options, single_labels(task.test)
    (features,) = task.features(task.test, options.features)
    numbers = [default_clusters(task.dataset_name, labels)] if options.clusters == "auto" else options.clusters
    if max(numbers) > len(labels):
        raise UserError(f"--clusters is {max(numbers)}, but there are only {len(labels)} images")
    metrics: Metrics = {}
    for k in numbers:
        with task.steps.doing(f"k-means of {len(features):,} features into {k:,} clusters"):
            found = clusterings(features, k, options.starts, options.seed, task.run.kmeans_engine)
            tables = [agreement.table(clusters, labels) for clusters in found]
            suffix = "" if len(numbers) == 1 else f" (k = {k})"
            for name, score in SCORES.items():
                metrics[name + suffix] = over_draws([score(t) for t in tables])
    details: dict[str, Any] = {}
    _, own = task.run.images
    epochs = task.run.recorded_epochs
    if own is not None and epochs:
        with task.steps.doing("AMI of the run's own clusters over its training"):
            curves = over_training(task.run, own, epochs)
        details["ami_over_training"] = {"epochs": epochs, "clusters": task.run.settings.clusters, "ami": curves}
    if own is not None and task.run.has_prototypes:
        known, codes = _labelled(own)
        details["own_clusters"] = {"images": len(known), "classes": len(np.unique(codes))}
        for k, c in zip(task.run.settings.clusters, task.run.prototypes, strict=True):
            table = agreement.table(c.assignment.numpy()[known], codes)
            metrics[f"ami of the run's k = {k}"] = agreement.ami(table)
    notes = [f"k = {', '.join(f'{k:,}' for k in numbers)}"]
    return Outcome(metrics, WORDS[options.features], {"clusters": numbers}, details, notes)
