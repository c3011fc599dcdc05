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

PARTS = {"train": ("train", "trainval"), "test": ("test", "val", "valid")}  # what data sets call them
TOLD = ("train", "split", "image_set", "mode")  # parameters by which they are told the part


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
    kind = _kind(which)
    reasons = []
    for options in _options(which, _told(kind), part):
        try:
            return kind(which.root, **options)
        except (ValueError, RuntimeError, OSError, TypeError, ImportError) as error:
            reasons.append(" ".join(str(error).split()))
    raise UserError(f"{which.name} cannot be opened in {which.root}: {reasons[0]} (protonce downloads nothing)")


def has_parts(which: Name) -> bool:
    """Whether the data set can be told which part of it is wanted.

    Raises:
        UserError: torchvision has none of this name.
    """
    return bool(_told(_kind(which)))


def _kind(which: Name) -> Any:
    from torchvision import datasets

    kind: Any = getattr(datasets, which.name, None)
    if not (inspect.isclass(kind) and issubclass(kind, datasets.VisionDataset)):
        raise UserError(f"torchvision has no data set {which.name!r}; the names are those of torchvision.datasets")
    return kind


def _told(kind: Any) -> str:
    """The parameter by which a data set is told the part; empty: there are no parts."""
    parameters = inspect.signature(kind).parameters
    return next((name for name in TOLD if name in parameters), "")


def _options(which: Name, told: str, part: str) -> Iterator[dict[str, Any]]:
    """The ways in which the data set may be told the part."""
    names = (which.split,) if which.split else PARTS[part]
    if told == "train":
        if names[0] not in {*PARTS["train"], *PARTS["test"]}:
            raise UserError(f"{which.name} has no part {which.split!r}; it has train and test")
        yield {"train": names[0] in PARTS["train"]}
    elif told:
        yield from ({told: value} for value in names)
    elif which.split:
        raise UserError(f"{which.name} has no parts; leave out @{which.split}")
    else:
        yield {}


def dataset_labels(dataset: Any) -> list[str] | None:
    """The class of each image, where the data set has one and says so."""
    names = (name for name in ("targets", "labels", "_labels", "y") if hasattr(dataset, name))
    codes = np.asarray(getattr(dataset, next(names, ""), None))
    if codes.shape != (len(dataset),):
        codes = np.asarray([code for _, code in _pairs(dataset)])
    if codes.shape != (len(dataset),) or codes.dtype == object:
        return None
    classes = list(getattr(dataset, "classes", []))
    if np.issubdtype(codes.dtype, np.integer) and 0 <= codes.min() <= codes.max() < len(classes):
        return [str(classes[code]) for code in codes.tolist()]
    return [str(code) for code in codes.tolist()]


def files_of(dataset: Any) -> list[tuple[str, str]] | None:
    """Path and class of each image, where the data set is a list of files."""
    labels, pairs = dataset_labels(dataset), _pairs(dataset)
    if labels is None or not pairs or not isinstance(pairs[0][0], str | Path):
        return None
    return [(str(path), label) for (path, _), label in zip(pairs, labels, strict=True)]


def _pairs(dataset: Any) -> list[tuple[Any, Any]]:
    """An image, or its path, and its class; empty where the data set has no such list."""
    for name in ("samples", "imgs", "_samples"):
        found = getattr(dataset, name, None)
        if isinstance(found, list) and len(found) == len(dataset) and all(len(pair) == 2 for pair in found):
            return found
    return []
