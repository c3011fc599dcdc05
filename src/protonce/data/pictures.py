"""Pictures as they lie on disks: any mode, any orientation, whole or damaged; from encoded bytes to RGB pixels."""

import warnings
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
MOST_PIXELS = 178_000_000  # of an image; beyond it a small file could fill the memory. 20,000 x 8,900 is allowed
TURNED = (5, 6, 7, 8)  # EXIF's orientations by a quarter, in which height and width change places
Pixels = NDArray[np.uint8]  # (h, w, 3)

# Pillow warns of large pictures, and refuses still larger ones itself; the limit above is said in our own words.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# It also warns of damage that does not keep it from decoding; what does is a file that is skipped.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


class Picture(NamedTuple):
    """A decoded image."""

    pixels: Pixels  # (h', w', 3)
    shape: tuple[int, int]  # h and w of the whole
    reduction: float  # h / h', but for the part of a pixel by which h' was rounded up


def decode(file: BinaryIO, reduction: Callable[[int, int], int] = lambda *_: 1) -> Picture:
    """Pixels of an encoded image as RGB, upright, what is transparent on white; of an animation the first picture.

    Args:
        file: the encoded image.
        reduction: is told its height and width, and says by what factor (1, 2, 4 or 8) they may be divided; a JPEG is
            then decoded at that size, which takes far less time. Of one that EXIF turns, places are then known to a
            part of a pixel only: the side that was rounded up may have become the first.

    Raises:
        DecompressionBombError: it has more than MOST_PIXELS.
        Exception: whatever Pillow's plug-ins raise on a damaged file.
    """
    with Image.open(file) as image:
        _check_size(image)
        width, height = image.size
        turned = _orientation(image) in TURNED
        shape = (width, height) if turned else (height, width)
        factor = reduction(*shape)
        drafted = image.draft(image.mode, (width // factor, height // factor)) if factor > 1 else None
        try:
            ImageOps.exif_transpose(image, in_place=True)
        except Exception:  # a damaged EXIF block raises many kinds; the picture may be whole all the same
            shape = (height, width)
        return Picture(_rgb(image), shape, 1.0 if drafted is None else width / drafted[1][2])


def _rgb(image: Image.Image) -> Pixels:
    if image.mode.startswith("I") or image.mode == "F":  # more than 8 bits: the image's own range counts
        return _stretched(np.asarray(image, dtype=np.float64))
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))  # a copy: torch wants to be able to write


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # as above
        return 1


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
    except Image.DecompressionBombError:
        return f"it has more than {MOST_PIXELS:,} pixels"
    except Exception as error:  # Pillow's plug-ins raise many kinds on a damaged file; all mean the same here
        text = " ".join(str(error).split())
        return "not an image that Pillow knows" if "cannot identify" in text else text or type(error).__name__
    return height, width


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise Image.DecompressionBombError(f"{width} x {height}")


def _stretched(values: NDArray[np.float64]) -> Pixels:
    """Grey values of any range as RGB of 8 bits; what is not finite is black."""
    finite = np.isfinite(values)
    low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
    span = high - low
    grey = np.rint((np.where(finite, values, low) - low) * (255 / span if span else 0)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)
