"""`protonce label`: the labels of all images from those of a few."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonce.errors import UserError, shown
from protonce.evaluate.knn import neighbours
from protonce.files import csv_text
from protonce.label.classifiers import CLASSIFIERS, choose, temperature, winners
from protonce.label.labels_file import Labels
from protonce.label.space import directions

DOUBT = 0.5  # confidence in another label than the given one, from which on it is doubted


@dataclass(frozen=True)
class Predictions:
    """Labels of all n images."""

    label: list[str]  # empty: not certain enough
    confidence: NDArray[np.float64]  # (n,); 1 for images whose label was given
    given: NDArray[np.bool_]  # (n,)
    nearest: NDArray[np.int64]  # the most similar labelled image, for a labelled one another, (n,)
    similarity: NDArray[np.float64]  # cosine of the directions from the mean image, (n,)
    doubted: dict[int, tuple[str, float]]  # labelled images that look like another class, and how certainly
    classifier: str
    accuracies: dict[str, float]  # of each classifier on labelled images held out; empty: there are none
    calibrated: bool  # whether `confidence` is the share of images that are expected to be right


def predict(features: Tensor, labels: Labels, seed: int, min_confidence: float = 0.0) -> Predictions:
    """Label all images by the classifier that cross-validation prefers.

    Args:
        features: of all images, (n, D).
        labels: one for each of some images.
        seed: of the folds.
        min_confidence: below it an image gets no label.

    Raises:
        UserError: an image has several labels, or all have the same.
    """
    several = next((image for image, own in labels.items() if len(own) > 1), None)
    if several is not None:
        raise UserError(
            f"an image has the labels {' and '.join(labels[several])}; `protonce label` gives each image one, so choose"
        )
    images = torch.tensor(sorted(labels))
    names = sorted({own[0] for own in labels.values()})
    if len(names) < 2:
        raise UserError(f"all labelled images are called {shown(names[0])}; label images of another class too")
    x = directions(features)
    y = torch.tensor([names.index(labels[i][0]) for i in images.tolist()])
    known = x[images]
    name, accuracies, held_out = choose(known, y, len(names), seed)
    tested = ~held_out.isnan().any(dim=1)
    t = temperature(held_out[tested], y[tested]) if accuracies else 1.0
    logits = CLASSIFIERS[name](known, y, len(names), x)
    chosen = winners(logits)
    confidence = _confidence(logits, chosen, t)
    chosen[images], confidence[images] = y, 1.0
    given = np.zeros(len(x), dtype=bool)
    given[images.numpy()] = True
    similarity, nearest = _nearest_labelled(x, images)
    return Predictions(
        label=[
            names[c] if p >= min_confidence else "" for c, p in zip(chosen.tolist(), confidence.tolist(), strict=True)
        ],
        confidence=confidence.numpy(),
        given=given,
        nearest=nearest,
        similarity=similarity,
        doubted=_doubted(images[tested], held_out[tested], y[tested], names, t),
        classifier=name,
        accuracies=accuracies,
        calibrated=bool(accuracies),
    )


def _confidence(logits: Tensor, chosen: Tensor, t: float) -> Tensor:
    return (logits.double() / t).softmax(dim=1).gather(1, chosen[:, None])[:, 0]


def _nearest_labelled(x: Tensor, images: Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Similarity to, and index of, the nearest labelled image; of a labelled one, another."""
    similarity, place = (found[:, 0] for found in neighbours(x[images], x, 1))
    own, other = (found[:, 0] for found in neighbours(x[images], x[images], 1, torch.arange(len(images))))
    similarity[images], place[images] = own, other
    return similarity.double().numpy(), images[place].numpy()


def _doubted(
    images: Tensor, held_out: Tensor, codes: Tensor, names: Sequence[str], t: float
) -> dict[int, tuple[str, float]]:
    """Labelled images for which a classifier that has not seen them prefers another label."""
    chosen = winners(held_out) if len(held_out) else codes
    confidence = _confidence(held_out, chosen, t)
    found = zip(images.tolist(), chosen.tolist(), codes.tolist(), confidence.tolist(), strict=True)
    return {i: (names[c], p) for i, c, own, p in found if c != own and p >= DOUBT}


def to_csv(names: Sequence[str], found: Predictions) -> str:
    """predictions.csv, a line an image."""
    header = ("name", "label", "confidence", "given", "nearest_labelled", "similarity", "looks_like")
    rows = [
        (
            name,
            found.label[i],
            f"{found.confidence[i]:.3f}",
            "yes" if found.given[i] else "",
            names[found.nearest[i]],
            f"{found.similarity[i]:.3f}",
            found.doubted[i][0] if i in found.doubted else "",
        )
        for i, name in enumerate(names)
    ]
    return csv_text(header, rows)
