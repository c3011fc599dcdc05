"""Atomic writes: a file is either complete or absent."""

import csv
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from protonce.errors import UserError


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
            else:  # file names need not be UTF-8: their bytes come back as they were
                file.write(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk does not say which file


@contextmanager
def explain_full_disk(out: Path) -> Iterator[None]:
    """Context that explains a full disk in one sentence, while a run is written to `out`.

    Raises:
        UserError: the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk of {out} is full: free some space and continue with --resume; the last checkpoint is safe"
            ) from None
        raise


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write named arrays atomically as a compressed .npz."""
    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as CSV text, one line per row, whatever characters its values contain."""
    lines = _Lines()
    # The writer quotes what could end a line for a reader, a carriage return too, if that is what ends its own.
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow(header)
    writer.writerows(rows)
    return "".join(lines)


class _Lines(list[str]):
    """What `csv.writer` writes to, row by row."""

    def write(self, row: str) -> None:
        self.append(row.removesuffix("\r\n") + "\n")
