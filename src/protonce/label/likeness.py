"""How alike two images are as pictures, whatever an encoder makes of them: small grey thumbnails, aligned.

A copy that was resized, recompressed, brightened, cropped or mirrored shows the same scene: some window of one image
correlates with the whole of the other. Features alone cannot tell this from another photo of the same kind of thing.
"""

import hashlib
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from protonce.data.pictures import decode
from protonce.data.sources import Source

SIDE = 64  # pixels of a thumbnail
CELLS = 16  # of the grid on which windows are compared
SCALES = (0.95, 0.9, 0.85, 0.8)  # sides of the windows, of that of the image
PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the windows, from one end to the other
FLAT = 2.0  # grey levels; an image that varies less correlates with none
SYMMETRIC = 0.01  # a mirrored image that correlates so little better is not called mirrored
HASH = 8  # a hash has HASH x HASH bits
BLOCK = 32  # pairs compared at once


class Likeness(NamedTuple):
    """Of pairs of images."""

    correlation: Tensor  # the best of all windows, (p,)
    mirrored: Tensor  # whether one of them has to be mirrored for it, (p,)


class Small(NamedTuple):
    """What is compared of images."""

    thumbs: Tensor  # in grey, squeezed into squares, (n, SIDE, SIDE), uint8
    content: list[bytes]  # digests of the files, or of the pixels where there are none
    length: list[int]  # bytes of the same


def read_small(source: Source, seen: Callable[[int], None] = lambda _: None) -> Small:
    """Read all images of a source at a reduced size; `seen` is called with 1 after each."""

    def read(i: int) -> tuple[Tensor, bytes, int]:
        if source.encoded is None:
            pixels = np.ascontiguousarray(source.load(i))
            content: bytes | memoryview = pixels.data
        else:
            with source.encoded(i) as file:
                content = file.read()
            pixels = decode(io.BytesIO(content), _reduction).pixels
        seen(1)
        digest = hashlib.blake2b(content, digest_size=16).digest()
        return thumbnail(Image.fromarray(pixels)), digest, memoryview(content).nbytes

    with ThreadPoolExecutor() as pool:
        thumbs, content, length = zip(*pool.map(read, range(len(source))), strict=True)
    return Small(torch.stack(thumbs), list(content), list(length))


def _reduction(height: int, width: int) -> int:
    """The factor by which a JPEG may be reduced, and stays larger than its thumbnail."""
    return max(factor for factor in (1, 2, 4, 8) if factor == 1 or min(height, width) >= factor * SIDE)


def thumbnail(image: Image.Image) -> Tensor:
    """An image in grey, squeezed into a square; (SIDE, SIDE), uint8."""
    return torch.from_numpy(np.array(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)))


def perceptual_hash(thumbs: Tensor) -> Tensor:
    """Whether each low frequency of the thumbnails (n, SIDE, SIDE) is above their median; (n, HASH²) of 1 and -1.

    The first row and column of the cosine transform are left out, and with them brightness.
    """
    place = torch.arange(SIDE) + 0.5
    wave = torch.cos(torch.pi / SIDE * torch.arange(1, HASH + 1)[:, None] * place)  # (HASH, SIDE)
    found = torch.cat([(wave @ part.float() @ wave.T).flatten(1) for part in thumbs.split(4096)])  # (n, HASH²)
    return torch.where(found > found.median(dim=1, keepdim=True).values, 1.0, -1.0)


def likeness(a: Tensor, b: Tensor) -> Likeness:
    """The largest correlation of the whole of one image with a window of the other, for p pairs of thumbnails.

    Args:
        a: thumbnails, (p, SIDE, SIDE).
        b: thumbnails, (p, SIDE, SIDE).
    """
    correlation, mirrored = [torch.empty(0)], [torch.empty(0, dtype=torch.bool)]
    for x, y in zip(map(_windows, a.split(BLOCK)), map(_windows, b.split(BLOCK)), strict=True):
        straight, turned = _best(x, y, 0), _best(x, y, 1)
        correlation.append(torch.maximum(straight, turned))
        mirrored.append(turned > straight + SYMMETRIC)
    return Likeness(torch.cat(correlation), torch.cat(mirrored))


def _best(x: Tensor, y: Tensor, mirrored: int) -> Tensor:
    """The largest correlation of the whole of one, mirrored or not, with a window of the other; (p,).

    Args:
        x: windows, (p, W, CELLS, CELLS), the whole image first.
        y: windows, (p, W, CELLS, CELLS).
        mirrored: 1: the whole is mirrored.
    """
    found = []
    for whole, windows in ((x, y), (y, x)):
        first = whole[:, 0].flip(2) if mirrored else whole[:, 0]  # (p, CELLS, CELLS)
        found.append((windows.flatten(2) @ first.flatten(1)[:, :, None]).amax(dim=(1, 2)))  # (p, W, 1)
    return torch.maximum(*found)


def _windows(thumbs: Tensor) -> Tensor:
    """All windows of the thumbnails (p, SIDE, SIDE) on the grid, less their mean, of norm 1; (p, W, CELLS, CELLS)."""
    parts, rows, columns = _GRID
    flat = parts.flatten(0, 1)  # (parts * CELLS, SIDE)
    cut = (flat @ thumbs.float() @ flat.T).unflatten(2, parts.shape[:2]).unflatten(1, parts.shape[:2])
    found: Tensor = cut[:, rows, :, columns].transpose(0, 1)  # (p, W, CELLS, CELLS)
    found = found - found.mean(dim=(2, 3), keepdim=True)
    norm = found.pow(2).sum(dim=(2, 3), keepdim=True).sqrt()
    return (found / norm).masked_fill(norm < FLAT * CELLS, 0.0)


def _grid() -> tuple[Tensor, Tensor, Tensor]:
    """Parts of an axis, (parts, CELLS, SIDE) as the share of each pixel in each cell; and the rows and columns, by the
    number of their part, of each window, (W,) each: the whole image, parts of it, and strips over its width or height.
    """
    parts = [(0.0, 1.0)] + [(place * (1 - scale), scale) for scale in SCALES for place in PLACES]
    whole, count = 0, len(PLACES)
    windows = [(whole, whole)]
    for first in range(1, len(parts), count):
        own = range(first, first + count)
        windows += [(row, column) for row in own for column in own]
        windows += [(row, whole) for row in own] + [(whole, column) for column in own]
    rows, columns = torch.tensor(windows).T
    return _cells(parts), rows, columns


def _cells(parts: Sequence[tuple[float, float]]) -> Tensor:
    """The share of each pixel in the mean of each cell of parts of an axis, given by start and size."""
    start, size = (torch.tensor(values)[:, None, None] * SIDE for values in zip(*parts, strict=True))
    low = start + size * (torch.arange(CELLS) / CELLS)[:, None]
    pixel = torch.arange(SIDE)
    overlap = (torch.minimum(low + size / CELLS, pixel + 1) - torch.maximum(low, pixel)).clamp_min(0)
    return overlap / overlap.sum(dim=2, keepdim=True)


_GRID = _grid()
