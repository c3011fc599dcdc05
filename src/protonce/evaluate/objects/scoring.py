"""Scores of detections on test images, the curves of each class, and what people look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from protonce.data.objects import ObjectImages, Objects
from protonce.data.sources import random_order
from protonce.evaluate.objects import coco_ap, voc_ap
from protonce.evaluate.objects.detections import Detections
from protonce.evaluate.objects.voc_ap import IGNORED, RIGHT, WRONG, ClassPrecision, Matches

SURE = 0.5  # score from which a detection is shown
SHOWN = 24  # images
POINTS = 200  # of a curve
VERDICTS = {RIGHT: "right", WRONG: "wrong", IGNORED: "ignored"}


@dataclass(frozen=True)
class Found:
    """What one training of a detector found, as JSON."""

    metrics: dict[str, float]
    by_class: dict[str, dict[str, float]]  # average precision by measure and class
    curves: dict[str, list[list[float]]]  # recall and precision by class, at IoU 0.5
    shown: list[dict[str, Any]]  # some test images
    left_out: list[str]  # classes without an object in the test images


def score(found: Sequence[Detections], truth: ObjectImages, seed: int, *, voc: bool, coco: Sequence[str]) -> Found:
    """Score detections.

    Args:
        found: detections on each image.
        truth: the images with their objects.
        seed: chooses the images that are shown.
        voc: whether VOC's mAP of boxes at IoU 0.5 is asked for, by 11 points and by all points.
        coco: of what COCO's AP is asked for, "box" or "mask".
    """
    matched = voc_ap.average_precision(found, truth)
    metrics: dict[str, float] = {}
    by_class: dict[str, dict[str, float]] = {}
    if voc:
        metrics = {"map_11": matched.mean(eleven_points=True), "map": matched.mean(eleven_points=False)}
        by_class["map_11"] = {c.name: c.eleven_points for c in matched.classes}
        by_class["map"] = {c.name: c.all_points for c in matched.classes}
    for kind in coco:
        precision = coco_ap.average_precision(found, truth, masks=kind == "mask")
        metrics |= {f"{name}_{kind}": getattr(precision, name) for name in ("ap", "ap50", "ap75")}
        by_class[f"ap_{kind}"] = precision.by_class
    curves = {c.name: curve(c) for c in matched.classes}
    return Found(metrics, by_class, curves, shown(found, truth, matched.matches, seed), matched.left_out)


def curve(found: ClassPrecision) -> list[list[float]]:
    """Recall and precision at up to 200 detections, evenly spaced by rank."""
    if not len(found.recall):
        return [[], []]
    kept = np.unique(np.linspace(0, len(found.recall) - 1, POINTS).round().astype(int))
    return [found.recall[kept].round(4).tolist(), found.precision[kept].round(4).tolist()]


def shown(
    found: Sequence[Detections], truth: ObjectImages, matches: Sequence[Matches], seed: int
) -> list[dict[str, Any]]:
    """Random test images with what was found on them and what was missed."""
    chosen = random_order(len(truth), "shown detections", seed)[:SHOWN].tolist()
    return [
        {
            "name": truth.names[i],
            "file": str(truth.files[i].resolve()),
            **describe(found[i], truth.objects[i], matches[i], truth.classes),
        }
        for i in chosen
    ]


def describe(
    found: Detections, truth: Objects, matches: Matches, classes: Sequence[str]
) -> Mapping[str, list[dict[str, Any]]]:
    """Sure detections of an image with their verdicts, and the objects that they missed."""
    sure = found.scores >= SURE
    seen = matches.best[sure & (matches.outcome == RIGHT)]
    counted = ~(truth.difficult | truth.crowd)
    counted[seen] = False
    return {
        "detections": [
            {
                "box": _box(found.boxes[d]),
                "class": classes[found.classes[d]],
                "score": round(float(found.scores[d]), 3),
                "verdict": VERDICTS[int(matches.outcome[d])],
                **({} if found.masks is None else {"mask": found.masks[d]}),
            }
            for d in np.flatnonzero(sure)
        ],
        "missed": [{"box": _box(truth.boxes[m]), "class": classes[truth.classes[m]]} for m in np.flatnonzero(counted)],
    }


def _box(box: Any) -> list[float]:
    return [round(float(x), 1) for x in box]
