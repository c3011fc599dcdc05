"""The data sets of benchmarks.adapt: those to choose by, and those that are read once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.data import choose
from protonce.data.object_sources import load_image, open_objects
from protonce.data.objects import ObjectImages
from protonce.data.sources import Source, open_source, random_order

TRAINED, HELD_OUT = 1000, 1000  # images of a set to choose by
SMALLEST = 32  # pixels of a side of a box that is cut out
Parts = tuple[Source, Source]


@dataclass(frozen=True)
class Pictures:
    """Images of unequal sizes in memory, with their labels: a data set of one's own."""

    images: Sequence[NDArray[np.uint8]]
    labels: list[str]

    def __len__(self) -> int:
        return len(self.images)

    def load(self, i: int) -> Any:
        """The pixels of an image."""
        return self.images[i]


def cifar10(root: Path, seed: int) -> Parts:
    """Training images only: to learn from, and held out, by the seed."""
    return choose(open_source(root / "train.zip"), seed, TRAINED, HELD_OUT)


imagenette = cifar10


def flowers(root: Path, seed: int) -> Parts:
    """2,000 photos to learn from, by the seed, and the test photos."""
    train = open_source(root / "train.zip")
    return train.subset(np.sort(random_order(len(train), "adapt", seed)[:2000])), open_source(root / "test.zip")


def elpv(root: Path, seed: int) -> Parts:  # noqa: ARG001
    """Photos of solar cells with four levels of defects; a quarter, always the same, is for the test.

    Args:
        root: the package elpv_dataset.
        seed: not used, as all other photos are learnt from.
    """
    with (root / "data" / "labels.csv").open() as file:
        rows = [line.split() for line in file.read().splitlines() if line.strip()]
    images = [np.asarray(Image.open(root / "data" / row[0]).convert("RGB")) for row in rows]
    source = open_source(Pictures(images, [f"defect {float(row[1]):.2f}" for row in rows]))
    order = random_order(len(source), "adapt", 0)
    tested = len(source) // 4
    return source.subset(np.sort(order[tested:])), source.subset(np.sort(order[:tested]))


def crops(root: Path, seed: int) -> Parts:  # noqa: ARG001
    """The objects of VOC's training and test photos, cut out by their boxes.

    Args:
        root: with VOCdevkit.
        seed: not used, as all objects are learnt from.
    """
    train = open_objects(f"VOC2007@trainval:{root}", "train")
    test = open_objects(f"VOC2007@test:{root}", "test", train.classes)
    return open_source(cut_out(train)), open_source(cut_out(test))


def cut_out(images: ObjectImages) -> Pictures:
    """The objects, each a picture with its class; neither difficult nor very small ones."""
    found, labels = [], []
    for i, objects in enumerate(images.objects):
        pixels = load_image(images, i)
        for box, code, difficult in zip(objects.boxes, objects.classes, objects.difficult, strict=True):
            x0, y0, x1, y1 = box.round().astype(int)
            if not difficult and min(x1 - x0, y1 - y0) >= SMALLEST:
                found.append(np.ascontiguousarray(pixels[y0:y1, x0:x1]))
                labels.append(images.classes[code])
    return Pictures(found, labels)


CHOOSING: dict[str, Callable[[Path, int], Parts]] = {"cifar10": cifar10, "imagenette": imagenette}
READ_ONCE: dict[str, Callable[[Path, int], Parts]] = {"flowers": flowers, "elpv": elpv, "voc-crops": crops}
