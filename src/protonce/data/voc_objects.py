"""Objects of images in the layout of PASCAL VOC: `VOC2007[@SPLIT]:ROOT`, `VOC2012[@SPLIT]:ROOT`, `VOC[@SPLIT]:ROOT`."""

from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from protonce.data import voc_layout
from protonce.data.identity import identity_of_annotated
from protonce.data.named import Name
from protonce.data.object_boxes import Kept, clip, measure, stack
from protonce.data.objects import ObjectImages, Objects
from protonce.data.paper_datasets import VOC_CLASSES
from protonce.errors import UserError, shown

NAMES = ("VOC2007", "VOC2012", "VOC")
SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG", ".bmp", ".tif", ".tiff", ".webp")
# VOC07+12 of the papers trains on both trainval splits. The annotations of VOC2012's test split were never published.
SPLITS = {"VOC2007": {"train": "trainval", "test": "test"}, "VOC2012": {"train": "trainval", "test": "val"}}


class _Image(NamedTuple):
    name: str
    file: Path
    size: tuple[int, int]
    annotation: str  # name of its file
    content: bytes
    objects: list[ElementTree.Element]


def read(name: Name, part: str, classes: list[str] | None = None) -> ObjectImages:
    """Read the images of one split, with their objects.

    Args:
        name: one of NAMES; its split, if it gives one, overrides `part`.
        part: "train" or "test".
        classes: class names; None: VOC's twenty for VOC2007 and VOC2012, otherwise the sorted names of the objects.

    Raises:
        UserError: it is not in the layout of VOC, or has no usable images or objects.
        OSError, ValueError: the list of the split cannot be read or is not text.
    """
    root = voc_layout.find_root(name)
    split = name.split or _default_split(name.name, root, part)
    keys = sorted(voc_layout.read_keys(root, split))
    if not keys:
        raise UserError(f"{voc_layout.split_file(root, split)} is empty")
    faults: list[str] = []
    images = [image for key in keys if (image := _read_image(root, key, faults)) is not None]
    if not images:
        raise UserError(f"{name}, split {split}: none of {len(keys)} images can be used; the first fault: {faults[0]}")
    if classes is None:
        classes = VOC_CLASSES if name.name in SPLITS else sorted({_name(e) for image in images for e in image.objects})
        classes = [c for c in classes if c]
    codes = {c: code for code, c in enumerate(classes)}
    objects = [_objects(image, codes, faults) for image in images]
    if not any(len(found.boxes) for found in objects):
        own = "; for classes of your own write VOC:ROOT" if name.name in SPLITS else ""
        first = f"the first fault: {faults[0]}" if faults else "their annotations are empty"
        raise UserError(f"{name}, split {split}: no usable object on {len(images)} images; {first}{own}")
    return ObjectImages(
        spec=str(name),
        classes=list(classes),
        names=[image.name for image in images],
        files=[image.file for image in images],
        sizes=np.array([image.size for image in images], dtype=np.int64),
        objects=objects,
        identity=identity_of_annotated([(i.name, i.file) for i in images], [i.content for i in images], classes),
        faults=faults,
    )


def _default_split(kind: str, root: Path, part: str) -> str:
    """The published split; for other data trainval and test, or train and val if there is no test split."""
    if kind in SPLITS:
        return SPLITS[kind][part]
    has_test = voc_layout.split_file(root, "test").is_file()
    order = {"train": ("trainval", "train") if has_test else ("train", "trainval"), "test": ("test", "val")}[part]
    return next((split for split in order if voc_layout.split_file(root, split).is_file()), order[0])


def _read_image(root: Path, key: str, faults: list[str]) -> _Image | None:
    annotation = f"Annotations/{key}.xml"
    try:
        content = voc_layout.read_annotation(root / annotation)
        tree = voc_layout.parse_annotation(content)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        faults.append(f"{annotation} cannot be read, and the image was left out: {reason}")
        return None
    places = (root / "JPEGImages" / f"{key}{suffix}" for suffix in SUFFIXES)
    file = next((place for place in places if place.exists()), root / "JPEGImages" / f"{key}.jpg")
    name = file.relative_to(root).as_posix()
    size = measure(file)
    if isinstance(size, str):
        faults.append(f"{name} cannot be read and was left out: {size}")
        return None
    said = tuple(_number(tree.findtext(f"size/{side}")) for side in ("width", "height"))
    if None not in said and said != size:
        wrong = " x ".join(f"{side:g}" for side in said if side is not None)
        right = f"{size[0]} x {size[1]}"
        faults.append(f"{annotation} gives {wrong} pixels, but the image has {right}, which was used")
    return _Image(name, file, size, annotation, content, tree.findall("object"))


def _objects(image: _Image, codes: dict[str, int], faults: list[str]) -> Objects:
    kept = []
    for number, element in enumerate(image.objects, 1):
        found = _object(element, image.size, codes)
        fault = found if isinstance(found, str) else found[1]
        if fault:
            faults.append(f"{image.annotation}, object {number}: {fault}")
        if not isinstance(found, str):
            kept.append(found[0])
    return stack(kept, masks=False)


def _object(element: ElementTree.Element, size: tuple[int, int], codes: dict[str, int]) -> tuple[Kept, str] | str:
    """An object and what was wrong with it, or why it was left out."""
    name = _name(element)
    if name not in codes:
        return f"its class {shown(name)} is not one of the {len(codes)} classes, and it was left out"
    corners = [_number(element.findtext(f"bndbox/{corner}")) for corner in ("xmin", "ymin", "xmax", "ymax")]
    x0, y0, x1, y1 = corners
    if x0 is None or y0 is None or x1 is None or y1 is None:
        return "its bndbox has no four numbers, and it was left out"
    if x1 <= x0 or y1 <= y0:  # pixels are inclusive, but a box of one pixel is a click, not an object
        return f"its box ({x0:g}, {y0:g}, {x1:g}, {y1:g}) has no area and was left out"
    box, fault = clip([x0 - 1, y0 - 1, x1, y1], *size, written=[x0, y0, x1, y1])
    if box is None:
        return fault
    return Kept(box, codes[name], difficult=(element.findtext("difficult") or "").strip() == "1"), fault


def _name(element: ElementTree.Element) -> str:
    return (element.findtext("name") or "").strip()


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
