"""Small data sets with objects, made on the spot in the layouts of VOC and COCO."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from protonce.data.objects import ObjectImages, Objects
from protonce.evaluate.objects.detections import Detections

WIDTH, HEIGHT = 40, 30


def voc_object(name="cat", box=(11, 6, 20, 15), difficult=0):
    corners = "".join(f"<{c}>{v}</{c}>" for c, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    part = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
    return f"<object>{part}<name>{name}</name><difficult>{difficult}</difficult><bndbox>{corners}</bndbox></object>"


def voc_xml(*objects, size=(WIDTH, HEIGHT)):
    said = f"<size><width>{size[0]}</width><height>{size[1]}</height></size>"
    return f"<annotation>{said}{''.join(objects)}</annotation>"


def make_voc(root: Path, **splits: dict[str, str]) -> Path:
    """Splits of annotations by the name of their image."""
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for split, annotations in splits.items():
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{key}\n" for key in annotations))
        for key, text in annotations.items():
            (root / "Annotations" / f"{key}.xml").write_text(text)
            save_image(root / "JPEGImages" / f"{key}.jpg")
    return root


def save_image(file: Path, **options) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.arange(HEIGHT * WIDTH * 3).reshape(HEIGHT, WIDTH, 3).astype(np.uint8)).save(file, **options)


SQUARE = [10.0, 5.0, 20.0, 5.0, 20.0, 15.0, 10.0, 15.0]


def coco_object(number=1, image=7, category=18, bbox=(10, 5, 10, 10), segmentation=(SQUARE,), **more):
    found = {"id": number, "image_id": image, "category_id": category, "bbox": list(bbox), "area": 99.5, "iscrowd": 0}
    return {**found, "segmentation": list(segmentation) if isinstance(segmentation, tuple) else segmentation, **more}


def coco_file(*annotations, images=(7, 9), **more):
    listed = [{"id": i, "file_name": f"{i:03d}.jpg", "width": WIDTH, "height": HEIGHT} for i in images]
    categories = [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}, {"id": 17, "name": "cat"}]
    return {"images": listed, "annotations": list(annotations), "categories": categories, **more}


def make_coco(root: Path, content, split="train2017", images=(7, 9)) -> Path:
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (root / "annotations" / f"instances_{split}.json").write_text(text)
    for i in images:
        save_image(root / split / f"{i:03d}.jpg")
    return root


def objects(boxes, classes, difficult=None, crowd=None, masks=None) -> Objects:
    boxes = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
    flags = [np.zeros(len(boxes), bool) if f is None else np.asarray(f, bool) for f in (difficult, crowd)]
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return Objects(boxes, np.asarray(classes, dtype=np.int64), *flags, areas, masks)


def object_images(found: list[Objects], classes, size=(100, 100)) -> ObjectImages:
    n = len(found)
    names = [f"{i}.jpg" for i in range(n)]
    return ObjectImages("test", list(classes), names, [Path(f) for f in names], np.tile(size, (n, 1)), found, "")


def detections(boxes, classes, scores, masks=None) -> Detections:
    return Detections(
        np.asarray(boxes, dtype=np.float32).reshape(-1, 4),
        np.asarray(classes, dtype=np.int64),
        np.asarray(scores, dtype=np.float32),
        masks,
    )
