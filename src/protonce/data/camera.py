"""HEIC and camera RAW, through optional packages: pillow-heif and rawpy."""

import functools
import struct
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]  # (h, w, 3)
HEIC_SUFFIXES = (".heic", ".heif")
RAW_SUFFIXES = (".dng", ".nef", ".cr2", ".cr3", ".arw", ".raf", ".orf", ".rw2", ".pef", ".srw")
INSTALL = "pip install 'protonce[photos]'"
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
RAW_STARTS = (b"FUJIFILMCCD-RAW", b"IIRO", b"IIRS", b"MMOR", b"IIU\0")  # of Fujifilm, Olympus and Panasonic
DNG_VERSION, SUBFILE_TYPE, SUB_IMAGES = 50706, 254, 330  # tags of TIFF


class MissingPackageError(Exception):
    """A file needs a package that is not installed."""


def is_heic(head: bytes) -> bool:
    """Whether a file with these first 16 bytes is HEIC."""
    return head[4:8] == b"ftyp" and head[8:12] in HEIC_BRANDS


def is_raw(head: bytes) -> bool:
    """Whether a file with these first 16 bytes is RAW; DNG, NEF and ARW begin like a TIFF, see `is_raw_tiff`."""
    return head.startswith(RAW_STARTS) or head[8:10] == b"CR" or (head[4:8] == b"ftyp" and head[8:12] == b"crx ")


def is_raw_tiff(file: BinaryIO) -> bool:
    """Whether a TIFF is RAW: it says that it is a DNG, or its first image is a preview of others inside it."""
    file.seek(0)
    head = file.read(8)
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(head[:4])
    if order is None or len(head) < 8:
        return False
    file.seek(struct.unpack(f"{order}I", head[4:])[0])
    count = int.from_bytes(file.read(2), "little" if order == "<" else "big")
    entries = file.read(12 * count)
    tags = {}
    for number, kind, _, value in struct.iter_unpack(f"{order}HHI4s", entries[: len(entries) // 12 * 12]):
        tags[number] = struct.unpack(f"{order}H", value[:2])[0] if kind == 3 else struct.unpack(f"{order}I", value)[0]
    return DNG_VERSION in tags or (tags.get(SUBFILE_TYPE) == 1 and SUB_IMAGES in tags)


@functools.cache
def add_heic() -> None:
    """Let Pillow open HEIC.

    Raises:
        MissingPackageError: pillow-heif is not installed.
    """
    try:
        import pillow_heif
    except ImportError:
        raise MissingPackageError(f"HEIC needs the package pillow-heif: {INSTALL}") from None
    pillow_heif.register_heif_opener()


def develop(file: BinaryIO, max_pixels: int) -> Pixels:
    """A RAW file as upright RGB pixels in the camera's white balance, at half its size; (h, w, 3).

    Raises:
        MissingPackageError: rawpy is not installed.
        DecompressionBombError: it has more pixels than `max_pixels`.
        Exception: whatever LibRaw raises for a damaged file.
    """
    try:
        import rawpy
    except ImportError:
        raise MissingPackageError(f"camera RAW needs the package rawpy: {INSTALL}") from None
    file.seek(0)
    with rawpy.imread(file) as raw:
        height, width = raw.sizes.raw_height, raw.sizes.raw_width
        if height * width > max_pixels:
            raise Image.DecompressionBombError(f"more than {max_pixels:,} pixels: {width} x {height}")
        pixels: Pixels = raw.postprocess(use_camera_wb=True, half_size=True)
        return pixels
