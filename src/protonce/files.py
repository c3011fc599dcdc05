"""Atomic writes: a file is either complete or absent."""

import csv
import errno
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from protonce.errors import DISK_FULL, UserError


def write_whole(path: Path, data: bytes | str | Callable[[BinaryIO], None]) -> None:
    """Write a file atomically: a reader finds the old or the new content, even after a crash.

    Args:
        path: of the file; its folder is created.
        data: the content, or a function that writes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            if callable(data):
                data(file)
            else:
                file.write(as_bytes(data))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        code = error.errno or errno.EIO  # numpy and zipfile may raise one without a number
        raise OSError(code, error.strerror or str(error), str(path)) from error  # a full disk does not say which file
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Context that gives a temporary folder to fill, which takes the place of `path` at the end.

    Args:
        path: of a folder that does not exist, or `is_empty`. The latter is filled from within: it may be a mount point,
            or in a folder that cannot be written to.
    """
    path = path.resolve()
    there = path.is_dir()
    part = path / ".part" if there else path.with_name(f".{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    try:
        yield part
        if there:
            for child in sorted(part.iterdir(), key=lambda p: (p.name == "config.yaml", p.name)):  # marks a run folder
                child.replace(path / child.name)
            part.rmdir()
        else:
            part.replace(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def check_new_file(out: Path) -> None:
    """Check that a file can be written.

    Raises:
        UserError: it is there already, or its folder is not.
    """
    if out.exists():
        raise UserError(f"--out {out} is there already; give a new file")
    if not out.parent.exists():
        raise UserError(f"--out {out}: the folder {out.parent} does not exist")


def is_empty(path: Path) -> bool:
    """Whether a folder can be filled: it does not exist, or has only hidden files."""
    return not path.exists() or (path.is_dir() and all(p.name.startswith(".") for p in path.iterdir()))


def as_bytes(data: bytes | str) -> bytes:
    """Text as UTF-8. File names need not be UTF-8: their bytes come back as they were."""
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def explain_full_disk(out: Path) -> Iterator[None]:
    """Context that explains a full disk in one sentence, while a run is written to `out`.

    Raises:
        UserError: the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise UserError(
                f"the disk of {out} is full: free some space and continue with --resume; the last checkpoint is safe"
            ) from None
        raise


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write named arrays atomically as a compressed .npz."""
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def npz_bytes(arrays: dict[str, Any]) -> bytes:
    """Named arrays as the content of a compressed .npz."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as CSV text, one line per row, whatever characters its values contain.

    A text that a spreadsheet would run as a formula (it starts with =, +, - or @) is preceded by an apostrophe, which
    `read_csv` removes.
    """
    lines = _Lines()
    # The writer quotes what could end a line for a reader, a carriage return too, if that is what ends its own.
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow(header)
    writer.writerows([_escape(value) for value in row] for row in rows)
    return "".join(lines)


def read_csv(text: str) -> list[dict[str, str]]:
    """The rows of a table that `csv_text` wrote, by the names of the columns.

    Raises:
        csv.Error: it is not such a table.
    """
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    header = next(rows, [])
    found = [[unescape(value) for value in row] for row in rows]
    if any(len(row) != len(header) for row in found):
        raise csv.Error("rows of different lengths")
    return [dict(zip(header, row, strict=True)) for row in found]


_FORMULA, _ESCAPED = re.compile(r"'*[=+\-@\t\r]"), re.compile(r"'+[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?")


def _escape(value: object) -> object:
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value


def unescape(value: str) -> str:
    """A value of a table without the apostrophe that `csv_text` puts before a formula."""
    return value[1:] if _ESCAPED.match(value) else value


class _Lines(list[str]):
    """What `csv.writer` writes to, row by row."""

    def write(self, row: str) -> None:
        self.append(row.removesuffix("\r\n") + "\n")
