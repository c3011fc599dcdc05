"""Mutual information between class labels and points in space (fig. 3b), by nearest neighbours (Ross 2014)."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import digamma
from torch import Tensor

from protonce.agreement import entropy, mutual_information, table
from protonce.data.sources import random_order
from protonce.evaluate.task import Metrics, Outcome, Task
from protonce.features import WORDS
from protonce.prototypes import assign

NEIGHBOURS = 3
_BLOCK = 1 << 24  # distances held at once
_ROUNDING = 1e-12  # of a squared distance from a float64 product, relative to the squared norms; with room to spare


def ross(points: Tensor, labels: NDArray[np.int64], k: int = NEIGHBOURS) -> float:
    """I(labels; points) in nats, estimated from distances to the k-th neighbour of the same label.

        I = ψ(N) - <ψ(N_x)> + <ψ(k)> - <ψ(m)>

    N_x counts the points of the same label, m those of any label that are nearer than the k-th neighbour, the point
    itself included. A label with fewer than k + 1 points takes a smaller k; a label with one point is left out. Where
    the k-th distance is 0, k becomes the number of the label's points at distance 0, and m that of all points there,
    the point itself among both: what is left is the estimate for a discrete variable. Distances that differ only by
    rounding are equal.

    Args:
        points: (n, d).
        labels: (n,), whole numbers from 0.
        k: neighbours.

    Returns:
        the estimate; it may be below 0, and in many dimensions it is too small
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
    points = points - points.mean(dim=0)  # small norms, so that products round little
    squares = points.square().sum(dim=1)
    for rows in torch.arange(n).split(max(_BLOCK // n, 1)):
        distance = torch.addmm(squares, points[rows], points.T, alpha=-2).add_(squares[rows, None])
        # Twice the rounding error, so that a radius above 0 is also larger than the margin below.
        distance.masked_fill_(distance <= 2 * _ROUNDING * squares[rows, None], 0)
        own = distance.masked_fill(known[rows, None] != known, torch.inf)
        own[torch.arange(len(rows)), rows] = torch.inf  # a point is no neighbour of its own
        nearest = own.topk(min(k, n), dim=1, largest=False).values  # (b, k)
        radius = nearest.gather(1, chosen[rows, None] - 1)  # (b, 1) to the k-th
        # As many as are nearer than the k-th neighbour, and the point itself, which is at distance 0. What is about as
        # near as the k-th has a squared norm of at most 2 |x|² + 2 radius, so one margin serves the whole row.
        margin = _ROUNDING * (squares[rows, None] + radius)  # (b, 1)
        nearer = (distance < radius - margin).sum(dim=1)
        at_zero = radius[:, 0] == 0
        chosen[rows] = torch.where(at_zero, (own == 0).sum(dim=1) + 1, chosen[rows])
        within[rows] = torch.where(at_zero, (distance == 0).sum(dim=1), nearer)
    mean = [float(digamma(v.double().numpy()).mean()) for v in (chosen, size, within)]
    return float(digamma(n)) + mean[0] - mean[1] - mean[2]


def protocol(task: Task) -> Outcome:
    """Information of one set's labels in momentum features, and in the prototypes they are assigned to."""
    options, source = task.options, task.train
    codes = task.codes(source)
    chosen = np.sort(random_order(len(codes), "information", options.seed)[: options.most])
    labels = codes[chosen]
    sample = source if len(chosen) == len(codes) else source.subset(chosen)
    (features,) = task.features(sample, "momentum")
    spaces = {"features": features}
    exact: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}  # of all images, where the run has kept it
    own = source.identity == task.run.config["data"].get("identity")
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
    notes = ["in nats; the estimate is biased in many dimensions: see what shuffled labels have, and the entropy"]
    if len(chosen) < len(codes):
        notes.append(f"estimates on {len(chosen):,} of {len(codes):,} images, drawn at random")
    return Outcome(metrics, WORDS["momentum"], {"images": len(chosen)}, notes=notes)


def _shuffled(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    return labels[random_order(len(labels), "information shuffled", seed)]
