"""List the image files of whatever a path leads to."""

import os
from collections.abc import Callable
from pathlib import Path

from protonce.data.archives import TARS, ZIPS, list_tar, list_zip
from protonce.data.folders import list_folder
from protonce.data.listings import Listing
from protonce.data.shards import is_pattern, list_shards
from protonce.data.tables import TABLES, list_table
from protonce.errors import UserError

KINDS = "a folder, .zip, .tar, shards-{0000..0127}.tar, .csv or .parquet of images, or `builtin`"


def list_files(path: Path) -> Listing:
    """List the image files of a folder, a .zip, a .tar or a table of paths.

    Raises:
        UserError: the path does not exist or cannot be read.
    """
    # Unlike those of Path, these functions accept names that no file can have.
    if os.path.isdir(path):  # noqa: PTH112
        return list_folder(path)
    is_file = os.path.isfile(path)  # noqa: PTH113
    if not is_file and not is_pattern(path):
        raise UserError(f"{str(path)[:1000]} does not exist; give {KINDS}")
    name = path.name.lower()
    readers: tuple[tuple[tuple[str, ...], Callable[[Path], Listing]], ...] = (
        (ZIPS, list_zip),
        (TARS, list_tar),
        (TABLES, list_table),
    )
    for suffixes, read in readers:
        if name.endswith(suffixes):
            try:
                return read(path) if is_file else list_shards(path)
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    raise UserError(f"{path} has an unsupported file format; give {KINDS}")


def exists(path: Path) -> bool:
    """Whether a path leads to something, or is a pattern of archives."""
    return path.exists() or is_pattern(path)
