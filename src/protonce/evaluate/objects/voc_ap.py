"""Average precision of detections by the rules of PASCAL VOC's devkit.

Detections of a class are ranked by confidence. Each belongs to the object of its class on its image with which it
overlaps most, if their intersection over union is at least 0.5. The first detection of an object is right, every other
one wrong. Detections of a difficult object count neither way, and difficult objects are not missed either. Crowds of
COCO are treated the same. Pixels of VOC are inclusive; the boxes of `Objects` end beyond the last pixel, so areas here
are the devkit's.

Confidences that are equal up to 1e-6 rank in the order of the images, and on one image in the order of `Detections`, so
that rounding on one CPU or another does not change the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protonce.data.objects import ObjectImages, Objects
from protonce.evaluate.objects.detections import Detections
from protonce.ties import COSINE, ranks

OVERLAP = 0.5  # intersection over union that makes a detection right
RIGHT, IGNORED, WRONG = 1, 0, -1
LEVELS = np.linspace(0, 1, 11)  # of recall, up to VOC2009
ROUNDING = 1e-9


@dataclass(frozen=True)
class Matches:
    """The detections of one image, compared with its objects."""

    outcome: NDArray[np.int8]  # (m,): RIGHT, IGNORED (a difficult object) or WRONG
    best: NDArray[np.int64]  # (m,): the object of this class with the largest overlap; -1: overlaps none enough


@dataclass(frozen=True)
class ClassPrecision:
    """Average precision of one class, and the curve it comes from: a point for each detection, by rank."""

    name: str
    objects: int  # that are not difficult
    eleven_points: float
    all_points: float
    recall: NDArray[np.float64]  # (d,)
    precision: NDArray[np.float64]  # (d,): of the first detections, not interpolated


@dataclass(frozen=True)
class VocPrecision:
    """Average precision of each class, and its mean; between 0 and 1."""

    classes: list[ClassPrecision]
    left_out: list[str]  # classes without an object that is not difficult: they have no average precision
    matches: list[Matches]  # of each image

    def mean(self, *, eleven_points: bool) -> float:
        """Mean over the classes, at eleven levels of recall (VOC up to 2009) or over the whole curve; NaN: no class."""
        found = [c.eleven_points if eleven_points else c.all_points for c in self.classes]
        return float(np.mean(found)) if found else float("nan")


def average_precision(detections: Sequence[Detections], truth: ObjectImages, overlap: float = OVERLAP) -> VocPrecision:
    """Average precision of each class.

    Args:
        detections: of each image of `truth`, in its order.
        truth: the images with their objects.
        overlap: intersection over union from which a detection is right.
    """
    best = [_most_overlapping(*pair, overlap) for pair in zip(detections, truth.objects, strict=True)]
    starts = np.cumsum([0] + [len(there.boxes) for there in truth.objects])
    matched = np.concatenate([np.where(b >= 0, b + s, -1) for b, s in zip(best, starts[:-1], strict=True)])
    codes = np.concatenate([found.classes for found in detections])
    scores = np.concatenate([found.scores for found in detections])
    true = np.concatenate([there.classes for there in truth.objects])
    ignored = np.concatenate([there.difficult | there.crowd for there in truth.objects])

    outcome = np.full(len(matched), WRONG, dtype=np.int8)
    classes, left_out = [], []
    for code, name in enumerate(truth.classes):
        members = np.flatnonzero(codes == code)
        members = members[np.argsort(-ranks(scores[members], COSINE), kind="stable")]
        outcome[members] = _outcomes(matched[members], ignored)
        objects = int(((true == code) & ~ignored).sum())
        if objects:
            classes.append(_class_precision(name, objects, outcome[members]))
        else:
            left_out.append(name)

    parts = zip(np.split(outcome, np.cumsum([len(b) for b in best])[:-1]), best, strict=True)
    return VocPrecision(classes, left_out, [Matches(*part) for part in parts])


def _most_overlapping(detections: Detections, truth: Objects, overlap: float) -> NDArray[np.int64]:
    """For each detection the object of its class with which it overlaps most, the first of several, or -1; (m,)."""
    if not len(detections.boxes) or not len(truth.boxes):
        return np.full(len(detections.boxes), -1, dtype=np.int64)
    iou = intersection_over_union(detections.boxes, truth.boxes)  # (m, objects)
    iou[detections.classes[:, None] != truth.classes] = -1
    return np.where(iou.max(axis=1) >= overlap, iou.argmax(axis=1), -1)


def _outcomes(matched: NDArray[np.int64], ignored: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Outcome of each detection of one class; (d,).

    Args:
        matched: index of the object of each detection, by rank; -1: none; (d,).
        ignored: whether each object counts neither way.
    """
    outcome = np.full(len(matched), WRONG, dtype=np.int8)
    _, first = np.unique(matched, return_index=True)
    outcome[first] = RIGHT
    outcome[matched < 0] = WRONG
    found = np.flatnonzero(matched >= 0)
    outcome[found[ignored[matched[found]]]] = IGNORED
    return outcome


def intersection_over_union(boxes: NDArray[np.floating], others: NDArray[np.floating]) -> NDArray[np.float64]:
    """Of each of m boxes with each of k others; (m, k)."""
    a, b = boxes[:, None].astype(np.float64), others[None].astype(np.float64)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])  # (m, k, 2)
    shared = sides.clip(0).prod(axis=-1)
    union = (a[..., 2:] - a[..., :2]).prod(axis=-1) + (b[..., 2:] - b[..., :2]).prod(axis=-1) - shared
    found: NDArray[np.float64] = shared / np.maximum(union, np.finfo(np.float64).tiny)
    return found


def _class_precision(name: str, objects: int, ranked: NDArray[np.int8]) -> ClassPrecision:
    """Average precision from the outcomes by rank."""
    right = ranked[ranked != IGNORED] == RIGHT
    hits = np.cumsum(right)
    recall, precision = hits / objects, hits / np.arange(1, len(hits) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]  # at this recall or a higher one
    first = np.searchsorted(recall, LEVELS - ROUNDING)  # of the detections that reach each level
    eleven = np.append(best, 0.0)[first].mean()  # 0 at levels that are not reached
    # Recall grows by the same amount at each detection that is right.
    return ClassPrecision(name, objects, float(eleven), float(best[right].sum() / objects), recall, precision)
