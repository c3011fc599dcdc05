"""Open images with objects by name, join several sets of them, and load their pixels."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from protonce.data import coco_objects, named, voc_objects
from protonce.data.folders import open_regular
from protonce.data.objects import ObjectImages
from protonce.data.pictures import decode, reason
from protonce.errors import LONGEST_MESSAGE, UserError, one_line, shown

READERS = {**dict.fromkeys(voc_objects.NAMES, voc_objects.read), "COCO": coco_objects.read}


def open_objects(spec: str, part: str, classes: list[str] | None = None) -> ObjectImages:
    """Read images with objects.

    Args:
        spec: `VOC2007[@SPLIT]:ROOT`, `VOC2012[@SPLIT]:ROOT`, `VOC[@SPLIT]:ROOT` for other data in the layout of VOC, or
            `COCO[@SPLIT]:ROOT` for data in the layout of COCO.
        part: "train" or "test"; ignored if `spec` names a split.
        classes: of the training images, for a test set: objects of other classes are left out and listed as faults.

    Raises:
        UserError: the data is missing, in another layout, or has no usable images or objects. Single images and objects
            that cannot be used are listed in `faults` instead.
    """
    name = named.parse(spec)
    if name is None or name.name not in READERS:
        raise UserError(
            f"{shown(spec)} has no objects that can be read; give VOC2007:ROOT, VOC2012:ROOT, VOC:ROOT or COCO:ROOT"
        )
    if not name.root.is_dir():
        raise UserError(f"{name}: {name.root} is not a folder; give the folder that contains {name.name}")
    try:
        found = READERS[name.name](name, part, classes)
    except (OSError, ValueError) as error:  # lists that cannot be read or are not text
        raise UserError(f"{name} cannot be read: {error}") from None
    return replace(found, faults=[one_line(fault, LONGEST_MESSAGE) for fault in found.faults])


def join(sets: Sequence[ObjectImages]) -> ObjectImages:
    """One set of images from several, such as VOC2007 and VOC2012; classes are joined by their names.

    Raises:
        UserError: an image is in two of them.
    """
    if len(sets) == 1:
        return sets[0]
    for i, one in enumerate(sets):
        for other in sets[:i]:
            twice = shared_files(other, one)
            if twice:
                raise UserError(f"{other.spec} and {one.spec} share {len(twice)} images, for example {twice[0]}")
    classes = list(dict.fromkeys(c for one in sets for c in one.classes))
    objects = []
    for one in sets:
        codes = np.array([classes.index(c) for c in one.classes], dtype=np.int64)
        objects += [replace(found, classes=codes[found.classes]) for found in one.objects]
    return ObjectImages(
        spec=", ".join(one.spec for one in sets),
        classes=classes,
        names=[name for one in sets for name in one.names],
        files=[file for one in sets for file in one.files],
        sizes=np.concatenate([one.sizes for one in sets]),
        objects=objects,
        identity=hashlib.sha256(" ".join(one.identity for one in sets).encode()).hexdigest()[:16],
        faults=[fault for one in sets for fault in one.faults],
    )


def shared_files(one: ObjectImages, other: ObjectImages) -> list[str]:
    """Names of the images of `other` whose files are also in `one`."""
    files = {os.path.realpath(file) for file in one.files}
    return [name for name, file in zip(other.names, other.files, strict=True) if os.path.realpath(file) in files]


def load_image(images: ObjectImages, i: int) -> NDArray[np.uint8]:
    """Pixels of image i in RGB; (h, w, 3).

    They are not turned, whatever the EXIF block says: boxes and masks of VOC and COCO are for the pixels as they are
    stored.

    Raises:
        UserError: the file cannot be decoded, or is no longer the one whose size was read.
    """
    try:
        with open_regular(images.files[i]) as file:
            found = decode(file, upright=False).pixels
    except Exception as error:  # a damaged file raises many kinds of errors
        raise UserError(
            f"cannot read {images.files[i]}: {reason(error)}; repair it or remove it from the annotations"
        ) from None
    width, height = images.sizes[i].tolist()
    if found.shape[:2] != (height, width):
        raise UserError(
            f"{images.files[i]} has {found.shape[1]} x {found.shape[0]} pixels, but had {width} x {height} before"
        )
    return found
