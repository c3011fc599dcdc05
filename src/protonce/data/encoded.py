"""Encoded images that are not files of their own: bytes in a table, in a data set or in a stream."""

import io
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from protonce.data import scratch
from protonce.data.folders import open_regular, regular_status
from protonce.data.listings import Listing

Encoded = Any  # bytes; a path; or {"bytes": ..., "path": ...} as Hugging Face has them, one of which may be None


@dataclass
class OpenEncoded:
    """Opens the images of a column. A class, so that it can be pickled for worker processes."""

    value: Callable[[int], Encoded]
    folder: Path  # that relative paths are relative to

    def __call__(self, i: int) -> BinaryIO:
        """Image i, encoded."""
        value = self.value(i)
        inside = content_of(value)
        if inside is not None:
            return io.BytesIO(inside)
        path = path_of(value)
        if path is None:
            raise OSError("the row has no image")
        return open_path(path, self.folder)


def open_path(path: str, folder: Path) -> BinaryIO:
    """Open a file, or an address as Hugging Face has them for members of archives (`zip://0.png::photos.zip`)."""
    if "://" not in path:
        return open_regular(folder / path)
    import fsspec

    with fsspec.open(path, "rb") as file:
        return io.BytesIO(file.read())


def content_of(value: Encoded) -> bytes | None:
    """The encoded image itself; None: it is elsewhere."""
    found = value.get("bytes") if isinstance(value, dict) else value
    return bytes(found) if isinstance(found, bytes | bytearray | memoryview) else None


def path_of(value: Encoded) -> str | None:
    """The path of the image, or what it was before it became bytes; None: it has none."""
    found = value.get("path") if isinstance(value, dict) else value
    return str(found) if isinstance(found, str | Path) and str(found) else None


def list_encoded(
    where: str, values: Callable[[int], Encoded], names: Sequence[str], labels: Sequence[str] | None, folder: Path
) -> Listing:
    """Listing of encoded images, in their order.

    Args:
        where: for error messages.
        values: returns the image of a row; can be pickled.
        names: of the rows; if two are the same, rows are numbered instead.
        labels: of the rows; None: there are none.
        folder: that relative paths are relative to.
    """
    found = [_identify(values(i), folder) for i in range(len(names))]
    unique = list(names) if len({*names}) == len(names) else numbered(len(names))
    return Listing(
        where=f"in {where}",
        names=unique,
        sizes=[size for size, _, _ in found],
        stamps=[stamp for _, stamp, _ in found],
        files=[file or f"{where}:{name}:{stamp:08x}" for name, (_, stamp, file) in zip(unique, found, strict=True)],
        open=OpenEncoded(values, folder),
        labels=None if labels is None else list(labels),
    )


def _identify(value: Encoded, folder: Path) -> tuple[int, int, str]:
    """Bytes of an image, its checksum or time of modification, and its file; empty: it has none."""
    content, path = content_of(value), path_of(value)
    if content is not None:
        return len(content), zlib.crc32(content), ""
    status = None if path is None or "://" in path else regular_status(folder / path)
    if status is None:
        return 0, zlib.crc32(str(path).encode("utf-8", "surrogateescape")), path or ""
    return status.st_size, status.st_mtime_ns, os.path.realpath(folder / str(path))


def numbered(n: int) -> list[str]:
    """Names for n rows that have none."""
    return [f"{i:08d}" for i in range(n)]


@dataclass
class Values:
    """The values of a column, by row. A class, so that it can be pickled for worker processes."""

    values: Sequence[Encoded]

    def __call__(self, i: int) -> Encoded:
        """Row i."""
        return self.values[i]


class Spool:
    """Images of a stream, kept in a temporary file that lives as long as this object.

    Args:
        images: the encoded images, one after another.
        purpose: for error messages.
    """

    def __init__(self, images: Iterable[bytes], purpose: str) -> None:
        self.file = scratch.create(purpose, named=True)
        self.path = Path(self.file.name)
        self.starts = [0]
        for image in images:
            try:
                self.file.write(image)
                self.file.flush()
            except OSError as error:
                raise scratch.no_space(purpose, 0, error) from None
            self.starts.append(self.starts[-1] + len(image))

    def __call__(self, i: int) -> bytes:
        """Image i, encoded."""
        return _read_span(self.path, self.starts, i)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Span, (self.path, self.starts)


@dataclass
class _Span:
    """A `Spool` in another process, while the first one has the file."""

    path: Path
    starts: list[int]

    def __call__(self, i: int) -> bytes:
        return _read_span(self.path, self.starts, i)


def _read_span(path: Path, starts: Sequence[int], i: int) -> bytes:
    with path.open("rb") as file:
        file.seek(starts[i])
        return file.read(starts[i + 1] - starts[i])
