"""What a folder, an archive or a table of paths contains: names, sizes, labels, and how to open each file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from protonce.data.pictures import SUFFIXES

T = TypeVar("T")


@dataclass(frozen=True)
class Marks:
    """Multi-label targets: the classes of each image."""

    classes: list[str]
    values: NDArray[np.int8]  # (n, classes): 1 present, -1 absent, 0 present but difficult to recognise
    eleven_points: bool = False  # whether the data set's own evaluation uses 11-point `average_precision`

    def of(self, chosen: NDArray[np.int64]) -> "Marks":
        """The targets of the images at these indices."""
        return Marks(self.classes, self.values[chosen], self.eleven_points)


@dataclass
class Listing:
    """Files that may be images, sorted by name."""

    where: str  # for error messages
    names: list[str]
    sizes: list[int]  # bytes
    stamps: list[int]  # modification time or checksum of each file
    files: list[str]  # location of each file, to compare with other listings
    open: Callable[[int], BinaryIO]
    labels: list[str] | None = None  # if the layout provides them
    marks: Marks | None = None  # if images may have several classes
    notes: list[str] = field(default_factory=list)  # what the user should know


def only(listing: Listing, names: Sequence[str]) -> Listing:
    """The files with these names, in this order. A missing file has size 0, and opening it fails."""
    position = {name: i for i, name in enumerate(listing.names)}
    found = [position.get(name) for name in names]

    def pick(values: Sequence[T], absent: T) -> list[T]:
        return [absent if i is None else values[i] for i in found]

    return Listing(
        where=listing.where,
        names=list(names),
        sizes=pick(listing.sizes, 0),
        stamps=pick(listing.stamps, 0),
        files=pick(listing.files, ""),
        open=_Only(listing.open, found),
        labels=None if listing.labels is None else pick(listing.labels, ""),
        notes=listing.notes,
    )


@dataclass
class _Only:
    open: Callable[[int], BinaryIO]
    found: list[int | None]

    def __call__(self, i: int) -> BinaryIO:
        position = self.found[i]
        if position is None:
            raise FileNotFoundError("file not found")
        return self.open(position)


def is_hidden(name: str) -> bool:
    """Whether a file or one of its folders is hidden, or an archive entry added by macOS."""
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


def is_image(name: str) -> bool:
    """Whether a file has an image suffix and is not hidden."""
    return name.lower().endswith(SUFFIXES) and not is_hidden(name)


def has_no_suffix(name: str) -> bool:
    """Whether only its content can tell if a file is an image: it has no suffix and is not hidden."""
    return not PurePosixPath(name).suffix and not name.endswith("/") and not is_hidden(name)
