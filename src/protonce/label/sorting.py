"""`protonce sort`: new images into the labels or clusters that are there."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonce.data.placing import check_folder
from protonce.data.sources import Data, open_source
from protonce.errors import UserError
from protonce.evaluate.knn import neighbours
from protonce.files import csv_text
from protonce.label.label_folders import write_label_folders
from protonce.label.labelling import predict
from protonce.label.labels_file import Given, take_labels
from protonce.label.space import directions
from protonce.progress import Steps
from protonce.run import Run

STRAYS = "fits none"  # folder of new images that are unlike all others
RARE = 0.01  # share of the run's images that are as far from their nearest as an image that fits none


@dataclass(frozen=True)
class Sorted:
    """Where new images belong."""

    names: list[str]
    group: list[str]  # label or cluster; `STRAYS`; empty: not certain enough
    confidence: NDArray[np.float64] | None  # of a label
    nearest: list[str]  # the most similar image of the run
    similarity: NDArray[np.float64]  # to it
    threshold: float  # similarity below which an image fits none


def sort_images(
    run: Run,
    new: Data,
    out: Path,
    *,
    labels: Given | None = None,
    granularity: int = 0,
    min_confidence: float = 0.0,
    copy: bool = False,
    data: Data | None = None,
    quiet: bool = False,
) -> Sorted:
    """Write OUT/GROUP/NUMBER-NAME for new images, and OUT/sorted.csv; nothing is moved.

    Args:
        run: with an encoder, and prototypes unless there are labels.
        new: images.
        out: a folder that does not exist yet, or is empty.
        labels: of some of the run's images, a table or a label by name: groups are labels; None: groups are clusters.
        granularity: of the clusters, 0 the coarsest.
        min_confidence: images of whose label it is less certain get none.
        copy: copy files instead of linking to them.
        data: the images of the run, if they have moved.
        quiet: print nothing.

    Raises:
        UserError: an argument is invalid. Nothing has been written.
    """
    if not 0 <= min_confidence <= 1:
        raise UserError(f"--min-confidence is {min_confidence}; it must be between 0 and 1")
    if labels is None and not 0 <= granularity < len(run.prototypes):
        raise UserError(f"--granularity is {granularity}; it must be 0, the coarsest, to {len(run.prototypes) - 1}")
    source = open_source(new, "train", run.settings.seed)
    check_folder(out, source)
    steps = Steps(quiet)
    before = run.source(data)
    known_labels = None if labels is None else take_labels(labels, before.names)
    (known,), (asked,) = (run.features(images, "backbone", steps=steps) for images in (before, source))
    similarity, nearest, threshold = fit(known, asked)
    confidence = None
    if known_labels is not None:
        mean = known.mean(dim=0)  # so that images get the same labels whatever comes with them
        found = predict(torch.cat([known, asked]), known_labels, run.settings.seed, min_confidence, mean)
        group, confidence = found.label[len(known) :], found.confidence[len(known) :]
    else:
        which, _ = run.assign(source)[granularity]
        digits = len(str(len(run.prototypes[granularity].centroids) - 1))
        group = [str(c).zfill(digits) for c in which.tolist()]
    group = [STRAYS if s < threshold else own for s, own in zip(similarity, group, strict=True)]
    result = Sorted(source.names, group, confidence, [before.names[i] for i in nearest], similarity, threshold)
    write_label_folders(source, group, out, copy, {"sorted.csv": to_csv(result)})
    return result


def fit(known: Tensor, asked: Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64], float]:
    """Similarity to, and index of, the nearest known image of each new one, (q,) each, and the least that fits.

    99 % of the known images have one that is nearer than that.

    Args:
        known: features, (n, D).
        asked: features, (q, D).
    """
    mean = known.mean(dim=0)
    x, y = directions(known, mean), directions(asked, mean)
    similarity, nearest = (found[:, 0].numpy() for found in neighbours(x, y, 1))
    if len(x) < 2:
        return similarity.astype(np.float64), nearest, -1.0
    usual, _ = neighbours(x, x, 1, left_out=torch.arange(len(x)))
    return similarity.astype(np.float64), nearest, float(usual.double().quantile(RARE)) - 1e-6


def to_csv(found: Sorted) -> str:
    """sorted.csv, a line an image."""
    header = ["name", "group", *(["confidence"] if found.confidence is not None else []), "nearest", "similarity"]
    columns: list[list[str]] = [found.names, found.group]
    if found.confidence is not None:
        columns.append([f"{p:.3f}" for p in found.confidence])
    columns += [found.nearest, [f"{s:.3f}" for s in found.similarity]]
    return csv_text(header, zip(*columns, strict=True))
