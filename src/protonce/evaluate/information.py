"""Mutual information between class labels and points in space (fig. 3b), by nearest neighbours (Ross 2014)."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import digamma
from torch import Tensor

from protonce.data.sources import random_order
from protonce.evaluate.agreement import entropy, mutual_information, table
from protonce.evaluate.frozen import WORDS
from protonce.evaluate.task import Metrics, Outcome, Task, labels_of
from protonce.kmeans import places
from protonce.prototypes import assign

NEIGHBOURS = 3
_BLOCK = 1 << 24  # distances held at once


def ross(points: Tensor, labels: NDArray[np.int64], k: int = NEIGHBOURS) -> float:
    """I(labels; points) in nats, estimated from distances to the k-th neighbour of the same label.

        I = ψ(N) - <ψ(N_x)> + <ψ(k)> - <ψ(m)>

    N_x counts the points of the same label, m those of any label that are nearer than the k-th neighbour, the point
    itself included. A label with fewer than k + 1 points takes a smaller k; a label with one point is left out. Where
    the k-th distance is 0, k becomes the number of the label's points at distance 0, and m that of all points there,
    the point itself among both: what is left is the estimate for a discrete variable.

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
    place = places(points)
    known = torch.from_numpy(labels)
    squares = points.square().sum(dim=1)
    for rows in torch.arange(n).split(max(_BLOCK // n, 1)):
        distance = torch.addmm(squares, points[rows], points.T, alpha=-2).add_(squares[rows, None])
        distance.clamp_min_(0)
        # Rounding leaves small numbers where there should be 0: points at the same place are known to be.
        distance[place[rows, None] == place] = 0
        own = distance.masked_fill(known[rows, None] != known, torch.inf)
        own[torch.arange(len(rows)), rows] = torch.inf  # a point is no neighbour of its own
        nearest = own.topk(min(k, n), dim=1, largest=False).values  # (b, k)
        radius = nearest.gather(1, chosen[rows, None] - 1)  # (b, 1) to the k-th
        # As many as are nearer than the k-th neighbour, and the point itself, which is at distance 0.
        nearer = (distance < radius).sum(dim=1)
        at_zero = radius[:, 0] == 0
        chosen[rows] = torch.where(at_zero, (own == 0).sum(dim=1) + 1, chosen[rows])
        within[rows] = torch.where(at_zero, (distance == 0).sum(dim=1), nearer)
    mean = [float(digamma(v.double().numpy()).mean()) for v in (chosen, size, within)]
    return float(digamma(n)) + mean[0] - mean[1] - mean[2]


def protocol(task: Task) -> Outcome:
    """Information of the training images' labels in momentum features, and in the prototypes they are assigned to."""
    options, source = task.options, task.train
    n = len(labels_of(source))
    chosen = np.sort(random_order(n, "information", options.seed)[: options.most])
    labels = task.codes(source)[chosen]
    shuffled = labels[random_order(len(labels), "information shuffled", options.seed)]
    (features,) = task.features(source, "momentum")
    spaces = {"features": features[torch.from_numpy(chosen)]}
    assigned = {}
    prototypes = task.run.prototypes if task.run.has_prototypes else []
    for k, c in zip(task.run.settings.clusters, prototypes, strict=bool(prototypes)):
        name = f"prototypes, k = {k}"
        which, _ = assign(spaces["features"], c)
        assigned[name], spaces[name] = which.numpy(), c.centroids[which]
    metrics: Metrics = {"entropy of the labels": entropy(np.bincount(labels))}
    for name, points in spaces.items():
        with task.steps.doing(f"information in {name}"):
            metrics[name] = ross(points, labels, options.neighbours)
            metrics[f"{name}; labels shuffled"] = ross(points, shuffled, options.neighbours)
        if name in assigned:
            metrics[f"{name}; exact"] = mutual_information(table(assigned[name], labels))
    notes = ["in nats; the estimate is biased in many dimensions: see what shuffled labels have, and the entropy"]
    if len(chosen) < n:
        notes.append(f"on {len(chosen):,} of {n:,} images, drawn at random")
    return Outcome(metrics, WORDS["momentum"], {"images": len(chosen)}, notes=notes)
