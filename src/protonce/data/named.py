"""torchvision's data sets by name: `NAME[@SPLIT]:ROOT`, such as `CIFAR10:~/data` or `STL10@unlabeled:~/data`."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protonce.data.pictures import Pixels
from protonce.errors import UserError

PARTS = {"train": ("train",), "test": ("test", "val", "valid")}  # what data sets call them


@dataclass(frozen=True)
class Name:
    """A torchvision data set, and which part of it."""

    name: str
    split: str  # empty: the one that is needed
    root: Path

    def __str__(self) -> str:
        return f"{self.name}{'@' if self.split else ''}{self.split}:{self.root.resolve()}"


def parse(text: str) -> Name | None:
    """The name in a text; None where it is none, but a path."""
    found = re.fullmatch(r"([A-Za-z][A-Za-z0-9]+)(?:@([\w.-]+))?:(.+)", text)
    if found is None or Path(text).exists():
        return None
    return Name(found[1], found[2] or "", Path(found[3]).expanduser())


@dataclass
class Images:
    """Images of a torchvision data set. A class, because workers may have to be sent it."""

    dataset: Any
    labels: list[str] | None

    def __len__(self) -> int:
        return len(self.dataset)

    def load(self, i: int) -> Pixels:
        """Pixels of an image as RGB; (h, w, 3)."""
        return np.asarray(self.dataset[i][0].convert("RGB"))


def open_named(which: Name, part: str) -> Any:
    """The data set itself; its `train` or `test` part, unless the name says which.

    Raises:
        UserError: torchvision has none of this name, it is not in ROOT, or it has no such part.
    """
    from torchvision import datasets

    kind: Any = getattr(datasets, which.name, None)
    known = inspect.isclass(kind) and issubclass(kind, datasets.VisionDataset)
    if not known:
        raise UserError(f"torchvision has no data set {which.name!r}; the names are those of torchvision.datasets")
    reasons = []
    for options in _options(inspect.signature(kind).parameters, which.split, part):
        try:
            return kind(which.root, **options)
        except (ValueError, RuntimeError, OSError) as error:
            reasons.append(" ".join(str(error).split()))
    raise UserError(f"{which.name} cannot be opened in {which.root}: {reasons[0]} (protonce downloads nothing)")


def _options(parameters: Any, split: str, part: str) -> Iterator[dict[str, Any]]:
    """The ways in which data sets are told the part."""
    names = (split,) if split else PARTS[part]
    if "train" in parameters:
        yield {"train": names[0] not in PARTS["test"]}
        return
    for name in ("split", "image_set", "mode"):
        if name in parameters:
            yield from ({name: value} for value in names)
            return
    yield {}


def labels_of(dataset: Any) -> list[str] | None:
    """The class of each image, where the data set has one and says so."""
    names = (name for name in ("targets", "labels", "_labels", "y") if hasattr(dataset, name))
    codes = np.asarray(getattr(dataset, next(names, ""), None))
    if codes.shape != (len(dataset),):
        return None
    classes = list(getattr(dataset, "classes", []))
    if np.issubdtype(codes.dtype, np.integer) and 0 <= codes.min() <= codes.max() < len(classes):
        return [str(classes[code]) for code in codes.tolist()]
    return [str(code) for code in codes.tolist()]


def files_of(dataset: Any) -> list[tuple[str, str]] | None:
    """Path and class of each image, where the data set is a list of files."""
    labels = labels_of(dataset)
    for name in ("samples", "imgs"):
        found = getattr(dataset, name, None)
        if labels is not None and isinstance(found, list) and len(found) == len(dataset):
            return [(str(path), label) for (path, _), label in zip(found, labels, strict=True)]
    return None
