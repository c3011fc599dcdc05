"""The hierarchy of clusters of a run and their members."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonce.agreement import largest_cells, table
from protonce.prototypes import parents
from protonce.run import Run, read_assignments
from protonce.ties import COSINE, ranks

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
NO_LABEL = "no label"


@dataclass(frozen=True)
class Level:
    """A granularity: k prototypes and the n images that belong to them."""

    assignment: Ints  # (n,)
    size: Ints  # (k,)
    parent: Ints | None  # (k,) prototype of the next coarser level; None: this is the coarsest
    concentration: Floats | None  # φ, (k,); None: the run is not finished
    distance: Floats | None  # cosine distance of each image to its prototype, (n,); None: not known

    def members(self) -> tuple[Ints, Ints]:
        """Images sorted by prototype, the closest first, (n,); and the start of each prototype's images, (k + 1,).

        Images that are equally close up to rounding keep their order.
        """
        start = np.concatenate([[0], np.cumsum(self.size)])
        if self.distance is None:
            return np.argsort(self.assignment, kind="stable"), start
        apart = self.distance.max() + 1.0  # an offset, so that images of different prototypes never share a rank
        return np.argsort(ranks(self.assignment * apart + self.distance, COSINE), kind="stable"), start

    def ranks(self) -> Ints | None:
        """Rank of each image among those of its prototype, from 0 for the closest, (n,); None: not known."""
        if self.distance is None:
            return None
        order, start = self.members()
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order)) - np.repeat(start[:-1], self.size)
        return ranks


def levels(run: Run, embeddings: Tensor | None) -> list[Level]:
    """The hierarchy of a run, coarse to fine: the final one, or that of the last epoch if the run is not finished.

    Args:
        run: with at least one finished epoch.
        embeddings: v' of the images, (n, d); None: not known.
    """
    if run.finished:
        assignments = [c.assignment for c in run.prototypes]
    else:
        assignments = [torch.from_numpy(a).long() for a in read_assignments(run.path, run.recorded_epochs[-1])]
    found = []
    for m, assignment in enumerate(assignments):
        distance = None
        if embeddings is not None:
            own = run.prototypes[m].centroids[assignment]  # (n, d)
            distance = _cosine_distance((embeddings * own).sum(dim=1))
        found.append(
            Level(
                assignment=assignment.numpy(),
                size=torch.bincount(assignment).numpy(),
                parent=parents(assignment, assignments[m - 1]).numpy() if m else None,
                concentration=run.prototypes[m].concentration.numpy() if run.finished else None,
                distance=distance,
            )
        )
    return found


def classes_of(labels: Sequence[str] | None) -> tuple[list[str], Ints | None]:
    """The classes in alphabetical order, and the class index of each image, (n,); None: there are no labels.

    If only some images have labels, the others belong to a last class, NO_LABEL.
    """
    if labels is None:
        return [], None
    classes = sorted({*labels} - {""})
    numbers = {name: i for i, name in enumerate([*classes, ""])}
    names = [*classes, NO_LABEL] if "" in labels else classes
    return names, np.array([numbers[label] for label in labels])


def cluster_purity(assignment: Ints, classes: Ints, known: Bools) -> tuple[Floats, Ints, Ints]:
    """Purity, majority class and number of labelled images of each cluster; (k,) each.

    A cluster without labelled images has purity nan and class -1.

    Args:
        assignment: cluster of each image, (n,); each of the k clusters occurs.
        classes: class of each image, (n,), integers from 0.
        known: whether each image has a label, (n,).
    """
    k = int(assignment.max()) + 1
    share, label = np.full(k, np.nan, dtype=np.float32), np.full(k, -1)
    labelled = np.bincount(assignment[known], minlength=k)
    if known.any():
        t = table(assignment[known], classes[known])
        best, clusters = largest_cells(t), np.flatnonzero(labelled)
        share[clusters] = t.counts[best] / t.row_sizes
        label[clusters] = np.unique(classes[known])[t.columns[best]]
    return share, label, labelled


def _cosine_distance(similarity: Tensor) -> Floats:
    """1 - similarity, or 0 if that is within rounding error; (n,)."""
    distance = 1 - similarity
    found: Floats = torch.where(distance < COSINE, 0, distance).numpy()
    return found
