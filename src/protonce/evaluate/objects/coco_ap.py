"""COCO's average precision of boxes and of masks, by faster-coco-eval.

Precision is averaged over 101 levels of recall and over overlaps of 0.5, 0.55, ..., 0.95. Crowds are neither found nor
missed, and of each class at most the 100 surest detections of an image count. Confidences that are equal rank in the
order of the images, and on one image in the order of `Detections`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonce.data.masks import import_coco
from protonce.data.objects import ObjectImages
from protonce.evaluate.objects.detections import Detections


@dataclass(frozen=True)
class CocoPrecision:
    """COCO's metrics, between 0 and 1; NaN if no class has an object that is not a crowd."""

    ap: float  # mean over overlaps
    ap50: float
    ap75: float
    by_class: dict[str, float]  # AP of each class that has objects


def average_precision(detections: Sequence[Detections], truth: ObjectImages, *, masks: bool = False) -> CocoPrecision:
    """COCO's average precision.

    Args:
        detections: of each image of `truth`, in its order.
        truth: the images with their objects.
        masks: compare masks, which all objects and detections must then have; otherwise boxes.

    Raises:
        UserError: faster-coco-eval is not installed.
        ValueError: masks are compared, but some are missing.
    """
    coco = import_coco()
    if masks and not (truth.has_masks and all(found.masks is not None for found in detections)):
        raise ValueError("masks can only be compared if all objects and all detections have them")
    kind = "segm" if masks else "bbox"
    true = coco.COCO(dataset(truth, masks=masks), print_function=_silent)
    found = coco.COCO(results(detections, truth, masks=masks), print_function=_silent)
    evaluation = coco.COCOeval_faster(true, found, kind, print_function=_silent)
    evaluation.evaluate()
    evaluation.accumulate()
    precision = np.asarray(evaluation.eval["precision"])[..., 0, -1]  # (overlaps, recalls, classes): all areas, 100
    by_class = {
        name: float(precision[..., k].mean()) for k, name in enumerate(truth.classes) if (precision[..., k] >= 0).all()
    }
    return CocoPrecision(_mean(precision), _mean(precision[0]), _mean(precision[5]), by_class)


def _silent(*_: Any) -> None:
    pass


def _mean(precision: NDArray[np.float64]) -> float:
    """Mean over the classes with objects; others have -1."""
    there = precision[precision > -1]
    return float(there.mean()) if there.size else float("nan")


def dataset(truth: ObjectImages, *, masks: bool) -> dict[str, list[dict[str, Any]]]:
    """The images and objects as an annotation file of COCO has them; ids of images, objects and classes start at 1."""
    annotations: list[dict[str, Any]] = []
    for i, there in enumerate(truth.objects):
        for j, box in enumerate(there.boxes.tolist()):
            annotation = _annotation(len(annotations) + 1, i, int(there.classes[j]), box)
            annotation |= {"iscrowd": int(there.crowd[j]), "area": float(there.areas[j])}
            if masks and there.masks is not None:
                annotation["segmentation"] = there.masks[j]
            annotations.append(annotation)
    return _file(truth, annotations)


def results(detections: Sequence[Detections], truth: ObjectImages, *, masks: bool) -> dict[str, list[dict[str, Any]]]:
    """The detections in the form of `dataset`, each with its score."""
    annotations: list[dict[str, Any]] = []
    for i, (found, _) in enumerate(zip(detections, truth.names, strict=True)):
        for j, box in enumerate(found.boxes.tolist()):
            annotation = _annotation(len(annotations) + 1, i, int(found.classes[j]), box)
            annotation |= {"iscrowd": 0, "score": float(found.scores[j])}
            annotation["area"] = annotation["bbox"][2] * annotation["bbox"][3]
            if masks and found.masks is not None:
                annotation["segmentation"] = found.masks[j]
            annotations.append(annotation)
    return _file(truth, annotations)


def _annotation(number: int, image: int, code: int, box: list[float]) -> dict[str, Any]:
    x0, y0, x1, y1 = box
    return {"id": number, "image_id": image + 1, "category_id": code + 1, "bbox": [x0, y0, x1 - x0, y1 - y0]}


def _file(truth: ObjectImages, annotations: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    sizes = truth.sizes.tolist()
    return {
        "images": [{"id": i, "width": width, "height": height} for i, (width, height) in enumerate(sizes, 1)],
        "categories": [{"id": code, "name": name} for code, name in enumerate(truth.classes, 1)],
        "annotations": annotations,
    }
