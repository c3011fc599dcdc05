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
from protonce.label.answers import one_label, several_labels
from protonce.label.labels_file import BETWEEN, Labels
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


def predict(
    features: Tensor, labels: Labels, seed: int, min_confidence: float = 0.0, mean: Tensor | None = None
) -> Predictions:
    """Label all images by the classifier that cross-validation prefers.

    Where an image has several labels, each image may get several.

    Args:
        features: of all images, (n, D).
        labels: of some images.
        seed: of the folds.
        min_confidence: below it an image gets no label.
        mean: of the features that images are compared by, (D,); None: that of all images.

    Raises:
        UserError: all images have the same labels.
    """
    images = torch.tensor(sorted(labels))
    given = [labels[i] for i in images.tolist()]
    if len({*given}) < 2:
        raise UserError(f"all labelled images are called {shown(given[0][0])}; label images of another class too")
    x = directions(features, mean)
    answer = (several_labels if any(len(own) > 1 for own in given) else one_label)(x, images, given, seed)
    label, confidence = answer.label, answer.confidence.clone()
    for i, own in zip(images.tolist(), given, strict=True):
        label[i], confidence[i] = BETWEEN.join(own), 1.0
    is_given = np.zeros(len(x), dtype=bool)
    is_given[images.numpy()] = True
    similarity, nearest = _nearest_labelled(x, images)
    return Predictions(
        label=[text if p >= min_confidence else "" for text, p in zip(label, confidence.tolist(), strict=True)],
        confidence=confidence.numpy(),
        given=is_given,
        nearest=nearest,
        similarity=similarity,
        doubted={
            int(images[i]): (text, p)
            for i, (text, p) in answer.held_out.items()
            if text != BETWEEN.join(sorted(given[i])) and p >= DOUBT
        },
        classifier=answer.classifier,
        accuracies=answer.accuracies,
        calibrated=bool(answer.accuracies),
    )


def _nearest_labelled(x: Tensor, images: Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Similarity to, and index of, the nearest labelled image; of a labelled one, another."""
    similarity, place = (found[:, 0] for found in neighbours(x[images], x, 1))
    own, other = (found[:, 0] for found in neighbours(x[images], x[images], 1, torch.arange(len(images))))
    similarity[images], place[images] = own, other
    return similarity.double().numpy(), images[place].numpy()


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
