"""Decode image files of any mode and orientation to RGB pixels."""

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from protonce.data import camera

SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"),
    *camera.HEIC_SUFFIXES,
    *camera.RAW_SUFFIXES,
)
# What a file is decides, not its name. Pillow knows more formats, among them some that start other programs.
FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")
MAX_PIXELS = 178_000_000  # per image; 20,000 x 8,900 is allowed
# Memory that decoding needs at its peak: Pillow's image, the buffers of the decoder, and the RGB
# pixels. Measured for all modes, with a rotated copy if EXIF asks for one, and rounded up.
MAX_BYTES = 2_200_000_000
BYTES_PER_PIXEL = {"WEBP": 17, "JPEG2000": 20}
OTHER_BYTES_PER_PIXEL = 12
MAX_SIDE = 1_000_000  # Pillow and crops need memory per line, too
BAND = 1 << 22  # pixels that are converted at once
LARGE = 1 << 25  # pixels; larger images are decoded one at a time, not in all threads at once
HEAD = 16  # bytes by which the format of a file is recognised
HEADER_READS = 10_000  # of a file; usual headers need less than 100
RUN_LENGTH_READS = 4_000_000  # of the pixels of a BMP, which Pillow reads two bytes at a time if they are compressed
ROTATED = (5, 6, 7, 8)  # EXIF orientations that swap height and width
Pixels = camera.Pixels  # (h, w, 3)
_ONE_LARGE = threading.Lock()

# Pillow warns about large images and refuses very large ones; MAX_PIXELS replaces both.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# It also warns about damage that does not prevent decoding. Files that cannot be decoded are skipped.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


class Picture(NamedTuple):
    """A decoded image."""

    pixels: Pixels  # (h', w', 3)
    shape: tuple[int, int]  # height h and width w of the full image
    reduction: float  # h / h', before h' was rounded up to whole pixels


def decode(file: BinaryIO, reduction: Callable[[int, int], int] = lambda *_: 1, *, upright: bool = True) -> Picture:
    """Decode an image to upright RGB pixels on a white background; of an animation the first frame.

    Args:
        file: the encoded image.
        reduction: called with height and width; returns the factor (1, 2, 4 or 8) by which they may be divided. A JPEG
            is then decoded at the reduced size, which is much faster. If EXIF rotates it, coordinates are exact only up
            to a fraction of a pixel, because the last side, which was rounded up, may have become the first.
        upright: turn the image as its EXIF block says; otherwise pixels stay where they are stored.

    Raises:
        DecompressionBombError: the image has more than MAX_PIXELS pixels, needs more than MAX_BYTES, or has a side of
            more than MAX_SIDE.
        MissingPackageError: it is HEIC or camera RAW, and the package that reads these is not installed.
        Exception: whatever Pillow's plug-ins raise for a damaged file.
    """
    head = file.read(HEAD)
    if camera.is_raw(head) or camera.is_raw_tiff(file):
        return _developed(file)
    file.seek(0)
    formats = _formats()
    if camera.is_heic(head):
        camera.add_heic()
        formats = ("HEIF",)
    bounded: Any = _Bounded(file)
    with Image.open(bounded, formats=formats) as image:
        bounded.end_header(image.format in ("BMP", "DIB"))
        _check_size(image)
        width, height = image.size
        drafted = None
        if image.format in ("JPEG", "MPO"):  # no other format can be decoded at a reduced size
            rotated = upright and _orientation(image) in ROTATED
            factor = reduction(*((width, height) if rotated else (height, width)))
            if factor > 1:
                drafted = image.draft(image.mode, (max(width // factor, 1), max(height // factor, 1)))
        with _ONE_LARGE if image.size[0] * image.size[1] > LARGE else contextlib.nullcontext():
            # A failed `load` must end here: Pillow has then forgotten the rest of the file, so that the next attempt
            # succeeds with pixels that are partly black.
            image.load()
            turned = upright and _turn_upright(image)
            pixels = to_rgb(image)
        shape = (width, height) if turned else (height, width)
        if drafted is None:  # some formats only know after decoding how the image is to be turned
            shape = pixels.shape[:2]
        return Picture(pixels, shape, 1.0 if drafted is None else width / drafted[1][2])


def _developed(file: BinaryIO) -> Picture:
    pixels = camera.develop(file, MAX_PIXELS)
    return Picture(pixels, (pixels.shape[0], pixels.shape[1]), 1.0)


def probe(file: BinaryIO) -> tuple[int, int] | str:
    """Height and width of an image, or the reason why `decode` refuses it.

    It decodes the image as training does, a JPEG at an eighth of its size, which reads the whole file and is fast: what
    follows the entropy decoder cannot fail, so a JPEG can be decoded at all sizes or at none.
    """
    try:
        return decode(file, lambda *_: 8).shape
    except Image.DecompressionBombError as error:
        text = str(error)
        return text if text.startswith("more than") else f"more than {MAX_PIXELS:,} pixels"  # the latter from Pillow
    except MemoryError:
        return "not enough memory to decode it"
    except Exception as error:  # Pillow's plug-ins raise many kinds of errors for a damaged file
        return reason(error)


def reason(error: Exception) -> str:
    """Why Pillow refused a file, in a few words."""
    text = " ".join(str(error).split())
    return "not a supported image format" if "cannot identify" in text else text or type(error).__name__


def stored_size(file: BinaryIO) -> tuple[int, int] | str:
    """Width and height of an image as it is stored, whatever its EXIF block says, or why its header cannot be read.

    The pixels are not decoded. Camera RAW and HEIC are refused, because their decoders turn images themselves.
    """
    bounded: Any = _Bounded(file)
    try:
        if camera.is_raw(file.read(HEAD)) or camera.is_raw_tiff(file):
            return "camera RAW has no pixels that boxes could refer to"
        file.seek(0)
        with Image.open(bounded, formats=_formats()) as image:
            _check_size(image)
            return image.size
    except Exception as error:  # as above
        return reason(error)


def as_pixels(item: Any) -> Pixels | None:
    """An image of the user's own data set, a Pillow image or a uint8 array, as `decode` gives it; None: it is none."""
    if isinstance(item, Image.Image):
        _check_size(item)
        item.load()
        upright = item.copy()
        _turn_upright(upright)
        return to_rgb(upright)
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 3 and item.shape[2] == 3 and item.size:
        return np.require(np.asarray(item), requirements=["C", "W"])  # torch takes no other
    return None


def to_rgb(image: Image.Image) -> Pixels:
    """Pixels of a loaded image in RGB, on a white background; (h, w, 3), a writable array as torch expects it."""
    width, height = image.size
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    if image.mode.startswith("I") or image.mode == "F":  # more than 8 bits: scaled by the image's own range
        ranges = [found for _, band in _bands(image) if (found := _range(np.asarray(band)))]
        low, high = (min(r[0] for r in ranges), max(r[1] for r in ranges)) if ranges else (0.0, 0.0)
        for rows, band in _bands(image):
            with np.errstate(invalid="ignore"):  # a signalling NaN
                pixels[rows] = _stretched(np.asarray(band, dtype=np.float64), low, high)[..., None]
        return pixels
    for rows, band in _bands(image):
        if band.has_transparency_data:
            band = band.convert("RGBA")
            band = Image.alpha_composite(Image.new("RGBA", band.size, "white"), band)
        pixels[rows] = np.asarray(band if band.mode == "RGB" else band.convert("RGB"))
    return pixels


def _bands(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    """The image in bands of whole rows, so that conversions of a large image need little memory."""
    width, height = image.size
    step = max(BAND // max(width, 1), 1)
    if step >= height:
        yield slice(None), image
        return
    for top in range(0, height, step):
        bottom = min(top + step, height)
        yield slice(top, bottom), image.crop((0, top, width, bottom))


def _range(values: NDArray[Any]) -> tuple[float, float] | None:
    finite = values if values.dtype.kind in "iu" else values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else None


def _stretched(values: NDArray[np.float64], low: float, high: float) -> Pixels:
    """Grey values scaled to 8 bits; values that are not finite become black."""
    span = high - low
    finite = np.where(np.isfinite(values), values, low)
    grey: Pixels = np.rint((finite - low) * (255 / span if span else 0)).astype(np.uint8)
    return grey


def _turn_upright(image: Image.Image) -> bool:
    """Turn a loaded image as its EXIF block says, and return whether that swapped height and width."""
    orientation, before = _orientation(image), image.im
    if orientation == 1:
        return False
    with contextlib.suppress(Exception):  # a damaged EXIF block raises many kinds; the image itself is intact
        ImageOps.exif_transpose(image, in_place=True)
    return orientation in ROTATED and image.im is not before


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # as above
        return 1


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise Image.DecompressionBombError(f"more than {MAX_PIXELS:,} pixels: {width} x {height}")
    if width * height * BYTES_PER_PIXEL.get(image.format or "", OTHER_BYTES_PER_PIXEL) > MAX_BYTES:
        raise Image.DecompressionBombError(
            f"more than {MAX_BYTES / 1e9:.1f} GB needed to decode {width} x {height} pixels"
        )
    if max(width, height) > MAX_SIDE:
        raise Image.DecompressionBombError(f"more than {MAX_SIDE:,} pixels in a row or column: {width} x {height}")


def looks_encoded(head: bytes) -> bool:
    """Whether a file with these first 16 bytes is an image in one of the formats of SUFFIXES."""
    magic = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")
    webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    bmp = head[:2] == b"BM" and head[14:15] in (b"\x0c", b"\x28", b"\x34", b"\x38", b"\x6c", b"\x7c")
    pnm = head[:2] in (b"P2", b"P3", b"P5", b"P6") and head[2:3] in (b"\n", b"\r", b" ")
    return head.startswith(magic) or webp or bmp or pnm or camera.is_heic(head) or camera.is_raw(head)


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # AVIF depends on the version of Pillow


class _Bounded:
    """A file that refuses to be read in very many small parts.

    Pillow's plug-ins read headers byte by byte or chunk by chunk in Python, so that 50 MB of spaces in a PPM, of fill
    bytes in a JPEG or of empty chunks in a PNG would take half a minute.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.is_header = file, True
        self.most, self.reads, self.bytes = HEADER_READS, 0, 0

    def end_header(self, is_bitmap: bool) -> None:
        """What follows are pixels, and for some formats more headers."""
        self.is_header = False
        self.most += RUN_LENGTH_READS if is_bitmap else 0

    def read(self, *size: int) -> bytes:
        data = self.file.read(*size)
        self.reads += 1
        self.bytes += len(data)
        if self.reads > self.most + (0 if self.is_header else self.bytes // 64):
            raise OSError("the header is too long" if self.is_header else "it consists of too many small parts")
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)
