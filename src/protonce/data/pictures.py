"""Decode image files of any mode and orientation to RGB pixels."""

import warnings
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
MAX_PIXELS = 178_000_000  # per image, so that no small file fills the memory; 20,000 x 8,900 is allowed
ROTATED = (5, 6, 7, 8)  # EXIF orientations that swap height and width
Pixels = NDArray[np.uint8]  # (h, w, 3)

# Pillow warns about large images and refuses very large ones; MAX_PIXELS replaces both.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# It also warns about damage that does not prevent decoding. Files that cannot be decoded are skipped.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


class Picture(NamedTuple):
    """A decoded image."""

    pixels: Pixels  # (h', w', 3)
    shape: tuple[int, int]  # height h and width w of the full image
    reduction: float  # h / h', before h' was rounded up to whole pixels


def decode(file: BinaryIO, reduction: Callable[[int, int], int] = lambda *_: 1) -> Picture:
    """Decode an image to upright RGB pixels on a white background; of an animation the first frame.

    Args:
        file: the encoded image.
        reduction: called with height and width; returns the factor (1, 2, 4 or 8) by which they may be divided. A JPEG
            is then decoded at the reduced size, which is much faster. If EXIF rotates it, coordinates are exact only up
            to a fraction of a pixel, because the last side, which was rounded up, may have become the first.

    Raises:
        DecompressionBombError: the image has more than MAX_PIXELS pixels.
        Exception: whatever Pillow's plug-ins raise for a damaged file.
    """
    with Image.open(file) as image:
        _check_size(image)
        width, height = image.size
        rotated = _orientation(image) in ROTATED
        shape = (width, height) if rotated else (height, width)
        factor = reduction(*shape)
        drafted = image.draft(image.mode, (width // factor, height // factor)) if factor > 1 else None
        try:
            ImageOps.exif_transpose(image, in_place=True)
        except Exception:  # a damaged EXIF block raises many kinds of errors; the image itself may be intact
            shape = (height, width)
        return Picture(_rgb(image), shape, 1.0 if drafted is None else width / drafted[1][2])


def _rgb(image: Image.Image) -> Pixels:
    if image.mode.startswith("I") or image.mode == "F":  # more than 8 bits: scaled by the image's own range
        return _stretched(np.asarray(image, dtype=np.float64))
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return np.array(
        image if image.mode == "RGB" else image.convert("RGB")
    )  # a copy, because torch expects a writable array


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # as above
        return 1


def probe(file: BinaryIO) -> tuple[int, int] | str:
    """Stored height and width of an image, or the reason why it cannot be used.

    A JPEG is decoded at an eighth of its size, which reads the whole file and is fast.
    """
    try:
        with Image.open(file) as image:
            _check_size(image)
            width, height = image.size
            image.draft("RGB", (max(width // 8, 1), max(height // 8, 1)))
            image.load()
    except Image.DecompressionBombError:
        return f"more than {MAX_PIXELS:,} pixels"
    except Exception as error:  # Pillow's plug-ins raise many kinds of errors for a damaged file
        text = " ".join(str(error).split())
        return "not a supported image format" if "cannot identify" in text else text or type(error).__name__
    return height, width


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise Image.DecompressionBombError(f"{width} x {height}")


def _stretched(values: NDArray[np.float64]) -> Pixels:
    """Grey values of any range scaled to 8-bit RGB; values that are not finite become black."""
    finite = np.isfinite(values)
    low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
    span = high - low
    grey = np.rint((np.where(finite, values, low) - low) * (255 / span if span else 0)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)
