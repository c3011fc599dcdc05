"""Put images into folders: links, copies or PNGs, under names that every file system allows."""

import os
import re
import shutil
from pathlib import Path, PurePosixPath

from PIL import Image

from protonce.data.sources import Source, is_inside
from protonce.errors import UserError
from protonce.files import is_empty

STEM, SUFFIX = 200, 20  # bytes; file systems allow 255 for a name
REFUSED = re.compile(r'[\x00-\x1f\x7f<>:"\\|?*]')  # in file names, by Windows or anywhere


def check_folder(out: Path, source: Source) -> None:
    """Refuse a folder for images that has something in it, or is among them.

    Raises:
        UserError: with what to do.
    """
    if not is_empty(out):
        raise UserError(f"{out} is not empty; give a new folder")
    if is_inside(out, source.place or source.spec):
        raise UserError(f"{out} is inside the image folder {source.spec}; give a folder elsewhere")
    if source.sizes is None:
        raise UserError(f"the items of {source.spec} are not images; only images can be written to folders")


def put_image(source: Source, i: int, folder: Path, rank: str, copy: bool) -> None:
    """Put an image into a folder as RANK-NAME: a link, a copy, or, if it is not a file of its own, a PNG."""
    name = file_name(rank, source.names[i])
    file = source.files[i] if source.files is not None else ""
    # Path.is_file raises for a name that is too long, as a member of an archive may have.
    if not os.path.isfile(file):  # noqa: PTH113
        Image.fromarray(source.load(i)).save(folder / f"{PurePosixPath(name).stem}.png")
    elif copy:
        shutil.copy2(file, folder / name)
    else:
        (folder / name).symlink_to(file)


def file_name(rank: str, name: str) -> str:
    """RANK-NAME for the last part of an image's name, with at most 255 bytes and characters of any file system.

    The rank makes it unique within a folder, also where upper and lower case are the same.
    """
    original = PurePosixPath(name)
    stem, suffix = (
        os.fsencode(REFUSED.sub("_", part))[:most].decode(errors="ignore")
        for part, most in ((original.stem, STEM), (original.suffix, SUFFIX))
    )
    return f"{rank}-{stem}{suffix}"
