"""Several .tar archives as one source, by a pattern: `shards-{0000..0127}.tar`, as in webdataset, or `*.tar`."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from protonce.data.archives import TARS, list_tar
from protonce.data.listings import Listing
from protonce.errors import UserError

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST = 100_000  # shards


def is_pattern(path: Path) -> bool:
    """Whether a path that does not exist names several archives."""
    return str(path).lower().endswith(TARS) and (RANGE.search(path.name) is not None or "*" in path.name)


def shards(pattern: Path) -> list[Path]:
    """The archives of a pattern.

    Raises:
        UserError: one is missing, or there are none.
    """
    names = [pattern.name]
    while found := RANGE.search(names[0]):
        first, last = found[1], found[2]
        if not int(first) <= int(last) < int(first) + MOST // len(names):
            raise UserError(f"{pattern} counts from {first} to {last}; count upwards, to at most {MOST:,} archives")
        numbers = [str(i).zfill(len(first)) for i in range(int(first), int(last) + 1)]
        names = [RANGE.sub(number, name, count=1) for name in names for number in numbers]
    if "*" in pattern.name:
        return sorted(p for name in names for p in pattern.parent.glob(name) if p.is_file()) or _none(pattern)
    paths = [pattern.with_name(name) for name in names]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise UserError(f"{missing[0]} of {pattern} does not exist; {len(missing):,} of {len(paths):,} are missing")
    return paths


def _none(pattern: Path) -> list[Path]:
    raise UserError(f"no archive is called {pattern}")


def list_shards(pattern: Path) -> Listing:
    """List the images of all archives of a pattern, sorted by name as if they were in one.

    Raises:
        UserError: an archive is missing or damaged, only some have labels, or two have an image of the same name.
    """
    listings = {path: list_tar(path) for path in shards(pattern)}
    places = sorted((name, k, i) for k, listing in enumerate(listings.values()) for i, name in enumerate(listing.names))
    paths, parts = list(listings), list(listings.values())
    for (name, k, _), (other, j, _) in itertools.pairwise(places):
        if name == other:
            raise UserError(f"{paths[k]} and {paths[j]} both have an image {name}; rename one")
    unlabelled = [path for path, listing in listings.items() if listing.labels is None and listing.names]
    if unlabelled and len(unlabelled) < sum(1 for part in parts if part.names):
        raise UserError(f"{unlabelled[0]} has no labels, and others of {pattern} have; add KEY.cls for each image")

    return Listing(
        where=f"in {pattern}",
        names=[name for name, _, _ in places],
        sizes=[parts[k].sizes[i] for _, k, i in places],
        stamps=[parts[k].stamps[i] for _, k, i in places],
        files=[parts[k].files[i] for _, k, i in places],
        open=_Joined([part.open for part in parts], [(k, i) for _, k, i in places]),
        labels=None if unlabelled else [(parts[k].labels or [])[i] for _, k, i in places],
        notes=[note for part in parts for note in part.notes],
    )


@dataclass
class _Joined:
    """Opens files of several listings. A class, so that it can be pickled for worker processes."""

    parts: list[Callable[[int], BinaryIO]]
    places: list[tuple[int, int]]  # listing and position of each file

    def __call__(self, i: int) -> BinaryIO:
        part, position = self.places[i]
        return self.parts[part](position)
