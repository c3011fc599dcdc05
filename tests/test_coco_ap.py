"""COCO's average precision by faster-coco-eval: against pycocotools, which reads a file of its own here."""

import contextlib
import io
import json
import sys

import numpy as np
import pytest

from annotated import detections, object_images, objects
from protonce.data.masks import encode, pixels
from protonce.data.object_sources import open_objects
from protonce.errors import UserError
from protonce.evaluate.objects.coco_ap import average_precision

pytest.importorskip("faster_coco_eval", reason="pip install 'protonce[detection]'")
coco = pytest.importorskip("pycocotools.coco", reason="pip install 'protonce[peers]'")
cocoeval = pytest.importorskip("pycocotools.cocoeval")
SIDE = 64


def theirs(found, images, kind, folder):
    """pycocotools, from files: AP, AP50, AP75, and AP of each class."""
    annotations, results = [], []
    for i, there in enumerate(images.objects):
        for j, (x0, y0, x1, y1) in enumerate(there.boxes.tolist()):
            annotation = {"id": len(annotations) + 1, "image_id": 100 + i, "category_id": 10 + int(there.classes[j])}
            annotation |= {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": float(there.areas[j])}
            annotations.append({**annotation, "iscrowd": int(there.crowd[j]), "segmentation": there.masks[j]})
        for j, (x0, y0, x1, y1) in enumerate(found[i].boxes.tolist()):
            result = {"image_id": 100 + i, "category_id": 10 + int(found[i].classes[j])}
            result["score"] = float(found[i].scores[j])
            if kind == "bbox":
                result["bbox"] = [x0, y0, x1 - x0, y1 - y0]
            else:
                width, height = images.sizes[i].tolist()
                result["segmentation"] = coco.maskUtils.frPyObjects(found[i].masks[j], height, width)
                result["segmentation"]["counts"] = result["segmentation"]["counts"].decode()
            results.append(result)
    content = {
        "info": {},
        "images": [{"id": 100 + i, "width": w, "height": h} for i, (w, h) in enumerate(images.sizes.tolist())],
        "categories": [{"id": 10 + c, "name": name} for c, name in enumerate(images.classes)],
        "annotations": annotations,
    }
    (folder / "truth.json").write_text(json.dumps(content))
    (folder / "found.json").write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO(folder / "truth.json")
        evaluation = cocoeval.COCOeval(truth, truth.loadRes(str(folder / "found.json")), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = evaluation.eval["precision"][:, :, :, 0, 2]
    by_class = {name: precision[..., k].mean() for k, name in enumerate(images.classes) if precision[0, 0, k] > -1}
    return evaluation.stats[:3], by_class


def check(found, images, folder, least=0.02, most=0.98):
    """Boxes and masks equal pycocotools', and are neither all right nor all wrong."""
    for masks, kind in ((False, "bbox"), (True, "segm")):
        ours = average_precision(found, images, masks=masks)
        stats, by_class = theirs(found, images, kind, folder)
        np.testing.assert_allclose([ours.ap, ours.ap50, ours.ap75], stats, atol=1e-12)
        assert ours.by_class.keys() == by_class.keys()
        np.testing.assert_allclose(list(ours.by_class.values()), list(by_class.values()), atol=1e-12)
        assert least < ours.ap < most


def ellipse(box, width, height):
    x0, y0, x1, y1 = box
    y, x = np.mgrid[:height, :width] + 0.5
    a, b = max(x1 - x0, 1) / 2, max(y1 - y0, 1) / 2
    return encode(((x - (x0 + x1) / 2) / a) ** 2 + ((y - (y0 + y1) / 2) / b) ** 2 <= 1)


def random_case(seed, n=20, classes=3):
    """Objects and crowds, several detections of each at many overlaps, and a class that is nowhere."""
    rng = np.random.default_rng(seed)
    truth, found = [], []
    for _ in range(n):
        m = int(rng.integers(0, 5))
        corners = rng.uniform(0, 35, (m, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(4, 25, (m, 2))], axis=1).astype(np.float32)
        codes, crowd = rng.integers(0, classes, m), rng.random(m) < 0.2
        truth.append(objects(boxes, codes, crowd=crowd, masks=[ellipse(b, SIDE, SIDE) for b in boxes]))
        which = rng.integers(0, m, 3 * m) if m else np.empty(0, dtype=int)
        moved = (boxes[which] + rng.normal(0, 2, (len(which), 4))).astype(np.float32)
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        named = np.where(rng.random(len(which)) < 0.9, codes[which], rng.integers(0, classes, len(which)))
        scores = rng.integers(0, 50, len(which)) / 50  # some are equal
        found.append(detections(moved, named, scores, [ellipse(b, SIDE, SIDE) for b in moved]))
    return found, object_images(truth, [f"class {c}" for c in range(classes + 1)], (SIDE, SIDE))


@pytest.mark.parametrize("seed", range(5))
def test_random_data_equals_pycocotools(seed, tmp_path):
    check(*random_case(seed), tmp_path)


@pytest.fixture(scope="module")
def photos(shared_data):
    return open_objects(f"COCO:{shared_data / 'coco128'}", "train")


def around(images, rng=None):
    """The objects that are not crowds; with a generator moved, some dropped and some of another class."""
    found = []
    for there, (width, height) in zip(images.objects, images.sizes.tolist(), strict=True):
        kept = np.flatnonzero(~there.crowd if rng is None else rng.random(len(there.crowd)) < 0.9)
        boxes, codes = there.boxes[kept], there.classes[kept]
        bitmaps = [pixels(there.masks[j], width, height) for j in kept]
        scores = np.ones(len(kept))
        if rng is not None:
            boxes = boxes + rng.normal(0, 4, boxes.shape)
            boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
            codes = np.where(rng.random(len(kept)) < 0.9, codes, rng.integers(0, 80, len(kept)))
            bitmaps = [np.roll(bitmap, rng.integers(-6, 7, 2), axis=(0, 1)) for bitmap in bitmaps]
            scores = rng.random(len(kept))
        found.append(detections(boxes, codes, scores, [encode(bitmap) for bitmap in bitmaps]))
    return found


def test_moved_objects_of_coco128_equal_pycocotools(photos, tmp_path):
    """Polygons and crowds as the file has them."""
    found = around(photos, np.random.default_rng(0))
    check(found, photos, tmp_path)
    crowds = [j for there in photos.objects for j in there.crowd]
    assert sum(crowds) == 10


def test_the_objects_themselves_are_right(photos):
    found = around(photos)
    for masks in (False, True):
        ours = average_precision(found, photos, masks=masks)
        assert (ours.ap, ours.ap50, ours.ap75) == (1, 1, 1)
        assert set(ours.by_class.values()) == {1}


def test_nothing_found_and_nothing_there():
    there = objects([[0, 0, 9, 9]], [0], masks=[ellipse([0, 0, 9, 9], SIDE, SIDE)])
    images = object_images([there, objects([], [], masks=[])], ["a", "b"], (SIDE, SIDE))
    for masks in (False, True):
        ours = average_precision([detections([], [], [], [])] * 2, images, masks=masks)
        assert (ours.ap, ours.ap50, ours.ap75) == (0, 0, 0)
        assert ours.by_class == {"a": 0}
    crowd = objects([[0, 0, 9, 9]], [0], crowd=[1])
    ours = average_precision([detections([[0, 0, 9, 9]], [0], [0.5])], object_images([crowd], ["a"]))
    assert np.isnan([ours.ap, ours.ap50, ours.ap75]).all()
    assert ours.by_class == {}


def test_nothing_is_printed(capfd):
    average_precision(*random_case(0), masks=True)
    assert capfd.readouterr() == ("", "")


def test_masks_that_are_missing():
    found, images = random_case(0)
    bare = [detections(one.boxes, one.classes, one.scores) for one in found]
    with pytest.raises(ValueError, match="if all objects and all detections have them"):
        average_precision(bare, images, masks=True)
    assert average_precision(bare, images).ap == average_precision(found, images).ap


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(UserError, match=r"need faster-coco-eval: pip install 'protonce\[detection\]'"):
        average_precision(*random_case(0))
