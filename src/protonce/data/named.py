"""torchvision data sets by name: `NAME[@SPLIT]:ROOT`, such as `CIFAR10:~/data` or `STL10@unlabeled:~/data`."""

import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protonce.errors import UserError

PARTS = {"train": ("train", "trainval"), "test": ("test", "val", "valid")}  # names that torchvision uses
SPLIT_PARAMETERS = ("train", "split", "image_set", "mode")  # constructor parameters that select the split


@dataclass(frozen=True)
class Name:
    """A torchvision data set and its split."""

    name: str
    split: str  # empty: chosen by the caller
    root: Path

    def __str__(self) -> str:
        return f"{self.name}{'@' if self.split else ''}{self.split}:{self.root.resolve()}"


def parse(text: str) -> Name | None:
    """Parse `NAME[@SPLIT]:ROOT`; None if the text is a path or has another form."""
    found = re.fullmatch(r"([A-Za-z][A-Za-z0-9]+)(?:@([\w.-]+))?:(.+)", text)
    if found is None or os.path.exists(text):  # noqa: PTH110 - accepts names that no file can have
        return None
    return Name(found[1], found[2] or "", Path(found[3]).expanduser())


@dataclass
class Images:
    """Images of a torchvision data set; can be pickled for worker processes."""

    dataset: Any
    labels: list[str] | None

    def __len__(self) -> int:
        return len(self.dataset)

    def load(self, i: int) -> Any:
        """An image, usually a Pillow image."""
        return self.dataset[i][0]


def open_named(which: Name, part: str) -> Any:
    """Open the `train` or `test` split of a data set, or the split that its name gives.

    Raises:
        UserError: torchvision has no such data set, it is not in ROOT, or it has no such split.
    """
    kind = _kind(which)
    offline = {"download": False} if "download" in inspect.signature(kind).parameters else {}  # some default to True
    reasons = []
    for options in _options(which, _split_parameter(kind), part):
        try:
            dataset = kind(which.root, **options, **offline)
            len(dataset)
            return dataset
        except Exception as error:  # damaged files raise many kinds of errors
            reasons.append(" ".join(str(error).split()) or type(error).__name__)
    raise UserError(f"{which.name} cannot be opened in {which.root}: {reasons[0]} (protonce does not download data)")


def has_parts(which: Name) -> bool:
    """Whether the data set has several splits.

    Raises:
        UserError: torchvision has no such data set.
    """
    return bool(_split_parameter(_kind(which)))


def _kind(which: Name) -> Any:
    from torchvision import datasets

    kind: Any = getattr(datasets, which.name, None)
    if not (inspect.isclass(kind) and issubclass(kind, datasets.VisionDataset)):
        raise UserError(f"torchvision has no data set {which.name!r}; see torchvision.datasets for the available names")
    if next(iter(inspect.signature(kind).parameters), "") != "root":
        raise UserError(f"torchvision's {which.name} has no images in a folder; use `builtin` to try protonce")
    return kind


def _split_parameter(kind: Any) -> str:
    """The constructor parameter that selects the split; empty: the data set has no splits."""
    parameters = inspect.signature(kind).parameters
    return next((name for name in SPLIT_PARAMETERS if name in parameters), "")


def _options(which: Name, parameter: str, part: str) -> Iterator[dict[str, Any]]:
    """Constructor arguments that may select the split, in the order in which to try them."""
    names = (which.split,) if which.split else PARTS[part]
    if parameter == "train":
        if names[0] not in {*PARTS["train"], *PARTS["test"]}:
            raise UserError(f"{which.name} has no split {which.split!r}; available splits: train, test")
        yield {"train": names[0] in PARTS["train"]}
    elif parameter:
        yield from ({parameter: value} for value in names)
    elif which.split:
        raise UserError(f"{which.name} has no splits; remove @{which.split}")
    else:
        yield {}


def dataset_labels(dataset: Any) -> list[str] | None:
    """Class of each image; None if the data set does not provide a single class per image."""
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
    """Path and class of each image; None if the data set is not a list of files."""
    labels, pairs = dataset_labels(dataset), _pairs(dataset)
    if labels is None or not pairs or not isinstance(pairs[0][0], str | Path):
        return None
    return [(str(path), label) for (path, _), label in zip(pairs, labels, strict=True)]


def _pairs(dataset: Any) -> list[tuple[Any, Any]]:
    """Pairs of an image, or its path, and its class; empty if the data set has no such list."""
    for name in ("samples", "imgs", "_samples"):
        found = getattr(dataset, name, None)
        if isinstance(found, list) and len(found) == len(dataset) and all(len(pair) == 2 for pair in found):
            return found
    return []
