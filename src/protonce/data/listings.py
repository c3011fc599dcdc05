"""List the image files of a folder, an archive or a table of paths: names, sizes, and how to open each."""

import csv
import io
import os
import shutil
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from protonce.data.pictures import SUFFIXES
from protonce.errors import UserError

T = TypeVar("T")
ZIPS, TABLES = (".zip",), (".csv", ".parquet")
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
PATHS = ("path", "file", "filename", "file_name", "image", "name")  # columns of a table
LABELS = ("label", "class", "target", "category")


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


def list_files(path: Path) -> Listing:
    """List the image files of a folder, a .zip, a .tar or a table of paths.

    Raises:
        UserError: the path does not exist or cannot be read.
    """
    if path.is_dir():
        return list_folder(path)
    kinds = "a folder, .zip, .tar, .csv or .parquet of images, or `builtin`"
    if not path.is_file():
        raise UserError(f"{path} does not exist; give {kinds}")
    name = path.name.lower()
    for suffixes, read in ((ZIPS, _zip), (TARS, _tar), (TABLES, _table)):
        if name.endswith(suffixes):
            return read(path)
    raise UserError(f"{path} has an unsupported file format; give {kinds}")


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


def _is_image(name: str) -> bool:
    """Whether a file has an image suffix and is neither hidden nor an archive entry added by macOS."""
    hidden = any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)
    return name.lower().endswith(SUFFIXES) and not hidden


# Folders and lists of files


@dataclass
class _Paths:
    """Opens files. A class, like those below, so that it can be pickled for worker processes."""

    paths: list[Path]

    def __call__(self, i: int) -> BinaryIO:
        return self.paths[i].open("rb")


def list_folder(folder: Path) -> Listing:
    """List the image files of a folder and its sub-folders; links are followed."""
    found = ((p.relative_to(folder).as_posix(), p) for p in _walk(folder))
    # A broken link is listed too, so that it is reported as unreadable.
    paths = sorted((name, p) for name, p in found if _is_image(name) and (p.is_file() or p.is_symlink()))
    return _of_paths(f"in {folder} or its sub-folders", paths)


def _walk(folder: Path) -> Iterator[Path]:
    """All files below a folder. Links are followed, except to a folder that contains them."""
    ways = {folder: {folder.resolve()}}  # for each folder the resolved paths of itself and its parents
    for place, folders, files in os.walk(folder, followlinks=True):
        way = ways.pop(Path(place))
        inside = {name: Path(place, name).resolve() for name in folders}
        folders[:] = [name for name in folders if inside[name] not in way]
        ways |= {Path(place, name): {*way, inside[name]} for name in folders}
        yield from (Path(place, name) for name in files)


def list_paths(root: Path, found: Iterable[tuple[str, str]], where: str) -> Listing:
    """List files below a folder, given as pairs of path and label."""
    labels = {os.path.relpath(path, root): label for path, label in found}
    names = sorted(labels)
    return _of_paths(f"in {where}", [(name, root / name) for name in names], [labels[name] for name in names])


def _of_paths(where: str, paths: list[tuple[str, Path]], labels: list[str] | None = None) -> Listing:
    """Listing of pairs of name and path, which are sorted by name."""
    found = [p.stat() if p.is_file() else None for _, p in paths]
    return Listing(
        where=where,
        names=[name for name, _ in paths],
        sizes=[0 if f is None else f.st_size for f in found],
        stamps=[0 if f is None else f.st_mtime_ns for f in found],
        files=[os.path.realpath(p) for _, p in paths],  # unlike Path.resolve, accepts a link to itself
        open=_Paths([p for _, p in paths]),
        labels=labels,
    )


# A .zip


class _Zip:
    """Members of a .zip, which each process and thread opens separately, so that workers read in parallel."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path, self.names = path, names
        self.local = threading.local()

    def __call__(self, i: int) -> BinaryIO:
        if getattr(self.local, "process", None) != os.getpid():  # a forked worker must not share the file offset
            self.local.process, self.local.file = os.getpid(), zipfile.ZipFile(self.path)
        return cast(BinaryIO, self.local.file.open(self.names[i]))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Zip, (self.path, self.names)


def _zip(path: Path) -> Listing:
    try:
        with zipfile.ZipFile(path) as archive:
            found = {i.filename: i for i in archive.infolist() if _is_image(i.filename)}
    except (zipfile.BadZipFile, OSError) as error:
        raise UserError(f"{path} cannot be read as a .zip: {error}") from None
    names = sorted(found)
    return Listing(
        where=f"in {path}",
        names=names,
        sizes=[found[name].file_size for name in names],
        stamps=[found[name].CRC for name in names],
        files=[f"{path.resolve()}:{name}" for name in names],
        open=_Zip(path, names),
    )


# A .tar


class _Tar:
    """Members of an uncompressed .tar, read in place."""

    def __init__(self, path: Path, spans: list[tuple[int, int]], unpacked: Any = None) -> None:
        self.path, self.spans = path, spans
        self.unpacked = unpacked  # temporary file of a compressed archive; it lives as long as this object

    def __call__(self, i: int) -> BinaryIO:
        offset, size = self.spans[i]
        with self.path.open("rb") as file:
            file.seek(offset)
            return io.BytesIO(file.read(size))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Tar, (self.path, self.spans)


def _tar(path: Path) -> Listing:
    """List the images of a .tar, compressed or not; as in webdataset, `KEY.cls` contains the label of `KEY.jpg`."""
    try:
        place, unpacked = path, None
        if path.suffix.lower() != ".tar":  # compressed archives have no random access
            unpacked = _unpack(path)
            place = Path(unpacked.name)
        with tarfile.open(place, "r:") as archive:
            regular = [m for m in archive if m.isreg() and not m.issparse()]
            members = {PurePosixPath(m.name).as_posix(): (m.offset_data, m.size) for m in regular}  # `./a` is `a`
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read as a .tar: {error}") from None
    spans = dict(sorted((name, span) for name, span in members.items() if _is_image(name)))
    opened = _Tar(place, list(spans.values()), unpacked)
    labels = None
    keys = [f"{name[: -len(PurePosixPath(name).suffix)]}.cls" for name in spans]
    if keys and all(key in members for key in keys):
        classes = _Tar(place, [members[key] for key in keys], unpacked)
        labels = [classes(i).read().decode(errors="replace").strip() for i in range(len(keys))]
    return Listing(
        where=f"in {path}",
        names=list(spans),
        sizes=[size for _, size in spans.values()],
        stamps=[path.stat().st_mtime_ns] * len(spans),
        files=[f"{path.resolve()}:{name}" for name in spans],
        open=opened,
        labels=labels,
    )


def _unpack(path: Path) -> Any:
    """Decompress a .tar into a temporary file."""
    unpacked = tempfile.NamedTemporaryFile(suffix=".tar")  # noqa: SIM115 - it lives as long as the listing
    with tarfile.open(path) as archive:
        inside: Any = archive.fileobj
        inside.seek(0)
        shutil.copyfileobj(inside, unpacked)
    unpacked.flush()
    return unpacked


# A table of paths


def _table(path: Path) -> Listing:
    """List the images of a .csv or .parquet with a column of paths, absolute or relative to it, and maybe of labels."""
    columns = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    lower = {name.strip().lower(): name for name in columns}
    which = next((lower[name] for name in PATHS if name in lower), None)
    if which is None:
        raise UserError(f"{path} has no column of image paths; name the column {', '.join(PATHS[:-1])} or {PATHS[-1]}")
    label = next((lower[name] for name in LABELS if name in lower and lower[name] != which), None)
    rows = sorted(dict(zip(map(str, columns[which]), columns[label] if label else columns[which], strict=True)).items())
    labels = ["" if value is None else str(value) for _, value in rows] if label else None
    return _of_paths(f"in the table {path}", [(name, path.parent / name) for name, _ in rows], labels)


def _csv(path: Path) -> dict[str, list[Any]]:
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        reader: Iterable[list[str]] = csv.reader(file)
        rows = [row for row in reader if row]
    if not rows:
        raise UserError(f"{path} is empty")
    short = next((i for i, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if short is not None:
        raise UserError(
            f"row {short + 1} of {path} has {len(rows[short])} columns, but the first row has {len(rows[0])}"
        )
    return {name: [row[i] for row in rows[1:]] for i, name in enumerate(rows[0])}


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UserError("reading .parquet needs pyarrow: pip install 'protonce[parquet]', or use a .csv") from None
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as .parquet: {error}") from None
    return {name: table[name].to_pylist() for name in table.column_names}
