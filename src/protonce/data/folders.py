"""List the image files of a folder, and files given by their paths."""

import heapq
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from protonce.data.listings import Listing, has_no_suffix, is_hidden, is_image
from protonce.data.pictures import HEAD, looks_encoded


@dataclass
class _Paths:
    """Opens files. A class, so that it can be pickled for worker processes."""

    paths: list[Path]

    def __call__(self, i: int) -> BinaryIO:
        return open_regular(self.paths[i])


def open_regular(path: Path) -> BinaryIO:
    """Open a file. Opening a named pipe would wait for a writer, and reading a device might never end.

    Raises:
        OSError: it is missing, cannot be read, or is not a regular file.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("not a regular file")
    return path.open("rb")


def list_folder(folder: Path) -> Listing:
    """List the image files of a folder and its sub-folders; links are followed.

    Files without a suffix are images if their content is. A broken link, or a pipe with the name of an image, is listed
    too, so that it is reported as unreadable.
    """
    found, unreadable = _walk(folder)
    start = len(os.path.join(folder, ""))  # noqa: PTH118 - strings, because there may be millions of files
    named = ((path[start:].replace(os.sep, "/"), path) for path in found)
    images = ((name, p) for name, p in named if is_image(name) or (has_no_suffix(name) and _is_encoded(Path(p))))
    paths = sorted((name, Path(path)) for name, path in images)
    listing = of_paths(f"in {folder} or its sub-folders", paths)
    listing.notes += [f"{path} cannot be read and was left out: {reason}" for path, reason in unreadable]
    return listing


def _is_encoded(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return looks_encoded(file.read(HEAD))
    except (OSError, ValueError):
        return False


def _walk(folder: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """All files below a folder, and the folders that cannot be read, with the reason.

    Each folder is visited once, however many links lead to it. Its own name wins over those of links; among links, the
    one in the fewest folders wins, then the first by name. Links to a folder that contains all others are not followed.
    """
    seen = {_identity(above) for above in folder.resolve().parents}
    files: list[str] = []
    unreadable: list[tuple[str, str]] = []
    links = [(0, str(folder))]  # a heap: depth and path
    while links:
        reached = [heapq.heappop(links)[1]]
        while reached:  # everything below a link, except what other links lead to
            place = reached.pop()
            try:
                identity = _identity(place)
                if identity in seen:
                    continue
                seen.add(identity)
                with os.scandir(place) as entries:
                    inside = list(entries)
            except OSError as error:
                unreadable.append((place, error.strerror or str(error)))
                continue
            for entry in inside:
                if not _is_folder(entry):
                    files.append(entry.path)
                elif is_hidden(entry.name):
                    continue
                elif entry.is_symlink():
                    heapq.heappush(links, (entry.path.count(os.sep), entry.path))
                else:
                    reached.append(entry.path)
    return files, unreadable


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _identity(folder: str | Path) -> tuple[int, int]:
    found = os.stat(folder)  # noqa: PTH116
    return found.st_dev, found.st_ino


def list_paths(root: Path, found: Iterable[tuple[str, str]], where: str) -> Listing:
    """List files below a folder, given as pairs of path and label."""
    labels = {os.path.relpath(path, root): label for path, label in found}
    names = sorted(labels)
    return of_paths(f"in {where}", [(name, root / name) for name in names], [labels[name] for name in names])


def of_paths(where: str, paths: list[tuple[str, Path]], labels: list[str] | None = None) -> Listing:
    """Listing of pairs of name and path, which are sorted by name."""
    found = [regular_status(p) for _, p in paths]
    return Listing(
        where=where,
        names=[name for name, _ in paths],
        sizes=[0 if f is None else f.st_size for f in found],
        stamps=[0 if f is None else f.st_mtime_ns for f in found],
        files=[os.path.realpath(p) for _, p in paths],  # unlike Path.resolve, accepts a link to itself
        open=_Paths([p for _, p in paths]),
        labels=labels,
    )


def regular_status(path: Path) -> os.stat_result | None:
    """What the system knows of a regular file; None: there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None
