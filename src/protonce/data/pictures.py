"""Pictures as they lie on disks: any mode, any orientation, whole or damaged; from encoded bytes to RGB pixels."""

import warnings
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
MOST_PIXELS = 178_000_000  # of an image; beyond it a small file could fill the memory. 20,000 x 8,900 is allowed
Pixels = NDArray[np.uint8]  # (h, w, 3)

# Pillow warns of large pictures, and refuses still larger ones itself; the limit above is said in our own words.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def decode(file: BinaryIO) -> Pixels:
    """Pixels of an encoded image as RGB, upright, what is transparent on white; (h, w, 3). Of an animation the first.

    Raises:
        ValueError: it has more than MOST_PIXELS.
        Exception: whatever Pillow's plug-ins raise on a damaged file.
    """
    with Image.open(file) as image:
        _check_size(image)
        try:
            upright = ImageOps.exif_transpose(image)
        except Exception:  # a damaged EXIF block raises many kinds; the picture may be whole all the same
            upright = image
        if upright.mode.startswith("I") or upright.mode == "F":  # more than 8 bits: the image's own range counts
            return _stretched(np.asarray(upright, dtype=np.float64))
        if upright.has_transparency_data:
            picture = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
        return np.asarray(upright.convert("RGB"))


def look(file: BinaryIO) -> tuple[int, int] | str:
    """Height and width of an image as it is stored, or the reason why it cannot be used.

    A JPEG is decoded at an eighth of its size, which reads every byte of it and takes little time.
    """
    try:
        with Image.open(file) as image:
            _check_size(image)
            width, height = image.size
            image.draft("RGB", (max(width // 8, 1), max(height // 8, 1)))
            image.load()
    except Exception as error:  # Pillow's plug-ins raise many kinds on a damaged file; all mean the same here
        text = " ".join(str(error).split())
        return "not an image that Pillow knows" if "cannot identify" in text else text or type(error).__name__
    return height, width


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise ValueError(f"it has {width:,} x {height:,} pixels; at most {MOST_PIXELS:,} are read")


def _stretched(values: NDArray[np.float64]) -> Pixels:
    """Grey values of any range as RGB of 8 bits; what is not finite is black."""
    finite = np.isfinite(values)
    low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
    span = high - low
    grey = np.rint((np.where(finite, values, low) - low) * (255 / span if span else 0)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)
