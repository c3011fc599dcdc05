"""Mutual information between class labels and features (fig. 3b), estimated from nearest neighbours (Ross 2014)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import digamma
from torch import Tensor

from protonce.agreement import entropy, expected_mutual_information, mutual_information, table
from protonce.data.sources import random_order
from protonce.errors import UserError
from protonce.evaluate.clustering import over_training
from protonce.evaluate.options import InformationOptions
from protonce.evaluate.task import Metrics, Outcome, Task, single_labels
from protonce.features import WORDS
from protonce.prototypes import assign
from protonce.run import Run, read_kept

NEIGHBOURS = 3
KEEP = "`protonce train --keep-features N` keeps those of N images"
_BLOCK = 1 << 24  # distances held at once
_ROUNDING = 1e-12  # generous bound on the error of squared distances in float64, relative to the squared norms


def ross(points: Tensor, labels: NDArray[np.int64], k: int = NEIGHBOURS) -> float:
    """Estimate I(labels; points) in nats from the distances to the k-th neighbour with the same label.

        I = ψ(N) - <ψ(N_x)> + <ψ(k)> - <ψ(m)>

    N_x is the number of points with the same label, m that of points with any label nearer than the k-th neighbour,
    including the point itself. A label with fewer than k + 1 points uses a smaller k; a label with one point is
    ignored. If the k-th distance is 0, k becomes the number of points with the same label at distance 0, and m that of
    all points at distance 0, both including the point itself: this is the estimate for a discrete variable. Distances
    that differ only by rounding are equal.

    Args:
        points: (n, d).
        labels: (n,), integers from 0.
        k: number of neighbours.

    Returns:
        the estimate; it may be negative, and is too small in high dimensions
    """
    counts = np.bincount(labels)
    several = counts[labels] > 1
    points, labels = points[torch.from_numpy(several)].double(), labels[several]
    if len(labels) == 0:
        return 0.0
    n, size = len(labels), torch.from_numpy(np.bincount(labels)[labels])  # N, N_x
    chosen = size.clamp_max(k + 1) - 1  # k of each point
    within = torch.empty(n, dtype=torch.int64)  # m
    known = torch.from_numpy(labels)
    points = points - points.mean(dim=0)  # small norms reduce rounding errors
    squares = points.square().sum(dim=1)
    for rows in torch.arange(n).split(max(_BLOCK // n, 1)):
        distance = torch.addmm(squares, points[rows], points.T, alpha=-2).add_(squares[rows, None])
        # Twice the rounding error, so that a radius above 0 is larger than the margin below.
        distance.masked_fill_(distance <= 2 * _ROUNDING * squares[rows, None], 0)
        own = distance.masked_fill(known[rows, None] != known, torch.inf)
        own[torch.arange(len(rows)), rows] = torch.inf  # a point is not its own neighbour
        nearest = own.topk(min(k, n), dim=1, largest=False).values  # (b, k)
        radius = nearest.gather(1, chosen[rows, None] - 1)  # (b, 1) to the k-th
        # Count the points nearer than the k-th neighbour, including the point itself at distance 0. Points about as
        # near as the k-th have a squared norm of at most 2 |x|² + 2 radius, so one margin is valid for the whole row.
        margin = _ROUNDING * (squares[rows, None] + radius)  # (b, 1)
        nearer = (distance < radius - margin).sum(dim=1)
        at_zero = radius[:, 0] == 0
        chosen[rows] = torch.where(at_zero, (own == 0).sum(dim=1) + 1, chosen[rows])
        within[rows] = torch.where(at_zero, (distance == 0).sum(dim=1), nearer)
    mean = [float(digamma(v.double().numpy()).mean()) for v in (chosen, size, within)]
    return float(digamma(n)) + mean[0] - mean[1] - mean[2]


def protocol(task: Task) -> Outcome:
    """Information between labels and momentum features, and between labels and the prototypes of the features."""
    options, source = task.options, task.train
    codes = task.codes(source)
    own = source.identity == task.run.config["data"].get("identity")
    if options.over_training and not own:
        raise UserError(
            f"--over-training uses the clusters that {task.run.path} recorded of its own images, not of {source.spec}; "
            "leave out --train and --test"
        )
    if options.over_training and not task.run.recorded_epochs:
        raise UserError(f"{task.run.path} has recorded no clusters in training; leave out --over-training")
    chosen = np.sort(random_order(len(codes), "information", options.seed)[: options.most])
    labels = codes[chosen]
    sample = source if len(chosen) == len(codes) else source.subset(chosen)
    (features,) = task.features(sample, "momentum")
    spaces = {"features": features}
    exact: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}  # for all images, if the run has recorded them
    for k, c in zip(task.run.settings.clusters, task.run.prototypes, strict=True) if task.run.has_prototypes else ():
        name = f"prototypes, k = {k}"
        which, _ = assign(features, c)
        spaces[name] = c.centroids[which]
        exact[name] = (c.assignment.numpy(), codes) if own else (which.numpy(), labels)
    metrics: Metrics = {"entropy of the labels": entropy(np.bincount(codes))}
    for name, points in spaces.items():
        with task.steps.doing(f"information in {name}"):
            metrics[name] = ross(points, labels, options.neighbours)
            metrics[f"{name}; labels shuffled"] = ross(points, _shuffled(labels, options.seed), options.neighbours)
        if name in exact:
            clusters, known = exact[name]
            metrics[f"{name}; exact"] = mutual_information(table(clusters, known))
            by_chance = table(clusters, _shuffled(known, options.seed))
            metrics[f"{name}; exact, labels shuffled"] = mutual_information(by_chance)
    notes = ["in nats; the estimate is biased in high dimensions: compare it with shuffled labels and with the entropy"]
    if len(chosen) < len(codes):
        notes.append(f"estimated on a random sample of {len(chosen):,} of {len(codes):,} images")
    details = {}
    if options.over_training:
        named = single_labels(source)
        with task.steps.doing("information in the prototypes over training"):
            details["over_training"] = _recorded(task.run, named)
        notes.append(_describe(details["over_training"]))
        if task.run.kept_epochs:
            with task.steps.doing("information in the kept features over training"):
                details["over_training"]["features"] = _kept(task.run, named, options)
            notes.append(_describe_features(details["over_training"]["features"]))
        else:
            notes.append(f"features of earlier epochs are not kept, so theirs is that of the final encoder; {KEEP}")
    return Outcome(metrics, WORDS["momentum"], {"images": len(chosen)}, details, notes)


def _recorded(run: Run, labels: Sequence[str]) -> dict[str, Any]:
    """Exact I(labels; prototypes) at every recorded epoch, and its expectation for shuffled labels; by granularity."""
    epochs = run.recorded_epochs
    return {
        "epochs": epochs,
        "clusters": run.settings.clusters,
        "exact": over_training(run, labels, epochs, mutual_information),
        "shuffled": over_training(run, labels, epochs, expected_mutual_information),
    }


def features_over_training(
    run: Run,
    labels: Sequence[str],
    epochs: Sequence[int],
    neighbours: int = NEIGHBOURS,
    most: int = 50_000,
    seed: int = 0,
    shuffled: bool = False,
) -> list[float]:
    """Estimated I(labels; V') of the kept images that have a label, at each of these epochs (from 1).

    Args:
        run: with kept features.
        labels: of all its images; an empty label is no label.
        epochs: among those of which features are kept.
        neighbours: of the estimator.
        most: number of images to use; of more, a random sample, the same in all epochs.
        seed: of the sample, and of the shuffled labels.
        shuffled: estimate it for shuffled labels.
    """
    estimates = []
    for epoch in epochs:
        kept = read_kept(run.path, epoch)
        rows = _labelled(kept.images, labels, most, seed)
        codes = np.unique(np.asarray(labels)[kept.images[rows]], return_inverse=True)[1]
        points = torch.from_numpy(kept.features[rows])
        estimates.append(ross(points, _shuffled(codes, seed) if shuffled else codes, neighbours))
    return estimates


def _labelled(images: NDArray[np.int32], labels: Sequence[str], most: int, seed: int) -> NDArray[np.int64]:
    """Rows of the images that have a label, or a random sample of them."""
    known = np.flatnonzero(np.asarray(labels)[images] != "")
    return known[np.sort(random_order(len(known), "information", seed)[:most])]


def _kept(run: Run, labels: Sequence[str], options: InformationOptions) -> dict[str, Any]:
    """Estimated I(labels; features) at every recorded epoch, and for shuffled labels."""
    epochs, how = run.kept_epochs, (options.neighbours, options.most, options.seed)
    return {
        "epochs": epochs,
        "images": len(_labelled(read_kept(run.path, epochs[0]).images, labels, options.most, options.seed)),
        "estimate": features_over_training(run, labels, epochs, *how),
        "shuffled": features_over_training(run, labels, epochs, *how, shuffled=True),
    }


def _describe(recorded: Mapping[str, Any]) -> str:
    """What the curves of the prototypes say, from the first to the last epoch."""
    first, last = recorded["epochs"][0], recorded["epochs"][-1]
    found = zip(recorded["clusters"], recorded["exact"], recorded["shuffled"], strict=True)
    parts = [f"{y[0]:.3f} to {y[-1]:.3f} for k = {k:,} (labels shuffled: {chance[-1]:.3f})" for k, y, chance in found]
    return f"exact information in the prototypes from epoch {first:,} to {last:,}: {', '.join(parts)}"


def _describe_features(kept: Mapping[str, Any]) -> str:
    """What the curve of the kept features says."""
    y, chance, epochs = kept["estimate"], kept["shuffled"], kept["epochs"]
    return (
        f"estimated information in the features of {kept['images']:,} kept images from epoch {epochs[0]:,} to "
        f"{epochs[-1]:,}: {y[0]:.3f} to {y[-1]:.3f} (labels shuffled: {chance[-1]:.3f})"
    )


def _shuffled(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    return labels[random_order(len(labels), "information shuffled", seed)]
