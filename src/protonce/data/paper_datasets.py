"""The paper's data sets in their published layouts, as `NAME[@SPLIT]:ROOT`: ImageNet, Places205, VOC."""

import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath

import numpy as np

from protonce.data import voc_layout
from protonce.data.folders import list_folder, list_paths
from protonce.data.listings import Listing, Marks
from protonce.data.named import Name
from protonce.errors import UserError

VOC_CLASSES = [
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
]

IMAGENET_CLASSES = 1000
SYNSET = re.compile(r"n\d{8}")  # name of a class of ImageNet


def is_imagenet(classes: Collection[str]) -> bool:
    """Whether these are the classes of ImageNet, wherever its images are: 1,000 synsets."""
    return len(classes) == IMAGENET_CLASSES and all(map(SYNSET.fullmatch, classes))


def read(name: Name, part: str) -> Listing:
    """List the images of one split of a data set, with their labels.

    Args:
        name: one of READERS; its split, if it gives one, overrides `part`.
        part: "train" or "test".

    Raises:
        UserError: the data set is missing or not in its published layout.
    """
    if not name.root.is_dir():
        raise UserError(f"{name}: {name.root} is not a folder; give the folder that contains {name.name}")
    try:
        return READERS[name.name](name, part)
    except (OSError, ValueError) as error:  # lists that cannot be read or are not text
        raise UserError(f"{name} cannot be read: {' '.join(str(error).split())[:200]}") from None


def _imagenet(name: Name, part: str) -> Listing:
    """ROOT/train and ROOT/val, with one folder per class."""
    split = name.split or {"train": "train", "test": "val"}[part]
    folder = name.root / split
    if not folder.is_dir():
        raise UserError(f"{name} has no folder {split}; expected ROOT/train and ROOT/val with one folder per class")
    listing = list_folder(folder)
    labels = [PurePosixPath(found).parts[0] if "/" in found else "" for found in listing.names]
    if "" in labels:
        raise UserError(f"{folder} has images outside class folders, for example {listing.names[labels.index('')]}")
    listing.labels = labels
    return listing


PLACES_LISTS = {"train": "train_places205.csv", "val": "val_places205.csv"}
PLACES_IMAGES = ("data/vision/torralba/deeplearning/images256", "images256", "images", ".")


def _places(name: Name, part: str) -> Listing:
    """Lists with `PATH NUMBER` per line, in ROOT or ROOT/trainvalsplit_places205; the class is the folder of PATH."""
    split = name.split or {"train": "train", "test": "val"}[part]
    if split not in PLACES_LISTS:
        raise UserError(f"{name} has no split {split!r}; Places205 has labels for train and val")
    places = [name.root / folder / PLACES_LISTS[split] for folder in (".", "trainvalsplit_places205")]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise UserError(f"{name}: {PLACES_LISTS[split]} was not found in ROOT or ROOT/trainvalsplit_places205")
    paths = [line.rsplit(maxsplit=1)[0] for line in file.read_text().splitlines() if line.strip()]
    if not paths:
        raise UserError(f"{file} is empty")
    folders = (name.root / folder for folder in PLACES_IMAGES)
    images = next((folder for folder in folders if (folder / paths[0]).is_file()), None)
    if images is None:
        looked = ", ".join(PLACES_IMAGES[:-1])
        raise UserError(f"{name}: {paths[0]}, listed in {file.name}, was not found; searched {looked} and ROOT itself")
    found = [(str(images / path), PurePosixPath(path).parent.as_posix().strip("/")) for path in paths]
    return list_paths(images, found, f"{file}")


def _voc(name: Name, part: str) -> Listing:
    """JPEGImages, Annotations and ImageSets/Main in ROOT, ROOT/VOC2007 or ROOT/VOCdevkit/VOC2007."""
    root = voc_layout.find_root(name)
    # The labels of VOC2012's test split were never published.
    splits = ("trainval", "test") if name.name == "VOC2007" else ("train", "val")
    split = name.split or splits[part == "test"]
    keys = voc_layout.read_keys(root, split)
    shown = {f"JPEGImages/{key}.jpg": _objects(root / "Annotations" / f"{key}.xml") for key in keys}
    seen = sorted({c for objects in shown.values() for c in objects})
    classes = VOC_CLASSES if set(seen) <= set(VOC_CLASSES) else seen
    listing = list_paths(root, [(str(root / image), "") for image in shown], f"{root}, split {split}")
    values = np.full((len(listing.names), len(classes)), -1, dtype=np.int8)
    for row, image in zip(values, listing.names, strict=True):
        for c, difficult in shown[image].items():
            row[classes.index(c)] = 0 if difficult else 1
    listing.labels = None
    listing.marks = Marks(list(classes), values, eleven_points=name.name == "VOC2007")
    return listing


def _objects(file: Path) -> dict[str, bool]:
    """Classes of the objects in an image, and whether all objects of the class are marked as difficult."""
    try:
        objects = voc_layout.parse_annotation(voc_layout.read_annotation(file)).findall("object")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the annotation {file}: {error}") from None
    shown: dict[str, bool] = {}
    for found in objects:
        c = (found.findtext("name") or "").strip()
        shown[c] = shown.get(c, True) and (found.findtext("difficult") or "0").strip() == "1"
    return shown


READERS = {"ImageNet": _imagenet, "Places205": _places, "VOC2007": _voc, "VOC2012": _voc}
