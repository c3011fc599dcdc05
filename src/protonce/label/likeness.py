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
import torch.nn.functional as F
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
HASH = 8  # a hash has HASH x HASH bits, and a coarse grid as many cells
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


def coarse(thumbs: Tensor) -> Tensor:
    """Means over the cells of a coarse grid of thumbnails (n, SIDE, SIDE), less their mean, of norm 1; (n, 8, 8)."""
    cells = F.adaptive_avg_pool2d(thumbs.float()[:, None], HASH)[:, 0]
    return F.normalize(_less_mean(cells).flatten(1), dim=1).view(-1, HASH, HASH)


def coarse_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of p pairs of coarse grids (p, HASH, HASH), as they are or with one mirrored; the larger, (p,)."""
    return torch.maximum((a * b).sum(dim=(1, 2)), (a * b.flip(2)).sum(dim=(1, 2)))


def likeness(a: Tensor, b: Tensor, i: Tensor, j: Tensor) -> Likeness:
    """The largest correlation of the whole of one image with a window of the other, for p pairs.

    Args:
        a: thumbnails, (n, SIDE, SIDE).
        b: thumbnails, (m, SIDE, SIDE).
        i: the image of `a` in each pair, (p,).
        j: the image of `b` in each pair, (p,).
    """
    norm_a, norm_b = (_norms(thumbs, images) for thumbs, images in ((a, i), (b, j)))
    correlation, mirrored = [torch.empty(0)], [torch.empty(0, dtype=torch.bool)]
    for pairs in torch.arange(len(i)).split(BLOCK):
        x, y = _strips(a[i[pairs]]), _strips(b[j[pairs]])
        straight, turned = torch.maximum(_best(x, y, norm_b[pairs]), _best(y, x, norm_a[pairs])).T
        correlation.append(torch.maximum(straight, turned))
        mirrored.append(turned > straight + SYMMETRIC)
    return Likeness(torch.cat(correlation), torch.cat(mirrored))


def _best(x: Tensor, y: Tensor, norms: Tensor) -> Tensor:
    """The largest correlation of the whole of x, as it is and mirrored, with a window of y; (p, 2).

    With rows R_r and columns C_c of a window of image T, and the whole z of the other, less its mean and of norm 1,
    Σ (R_r T C_cᵀ) ∘ z = Σ (R_r T) ∘ (z C_c), so that no window is cut out.

    Args:
        x: strips, (p, parts, CELLS, SIDE), that of the whole height first.
        y: strips, (p, parts, CELLS, SIDE).
        norms: of the windows of y, (p, W).
    """
    parts, rows, columns = _GRID
    whole = _less_mean(x[:, 0] @ parts[0].T)  # (p, CELLS, CELLS)
    norm = whole.square().sum(dim=(1, 2), keepdim=True).sqrt()
    z = (whole / norm).masked_fill(norm < FLAT * CELLS, 0.0)
    spread = (z @ _BOTH_WAYS).view(-1, CELLS * SIDE, 2 * len(parts))  # (p, CELLS SIDE, 2 parts)
    product: Tensor = (y.flatten(2) @ spread).unflatten(2, (2, len(parts)))  # (p, parts of rows, 2, parts of columns)
    return (product.transpose(1, 2)[:, :, rows, columns] / norms[:, None]).amax(dim=2)


def _strips(thumbs: Tensor) -> Tensor:
    """The parts of the height of thumbnails (p, SIDE, SIDE), less the mean of the image; (p, parts, CELLS, SIDE)."""
    parts = _GRID[0]
    found: Tensor = (parts.flatten(0, 1) @ _less_mean(thumbs.float())).unflatten(1, parts.shape[:2])
    return found


def _norms(thumbs: Tensor, images: Tensor) -> Tensor:
    """The norm of each window of the images (p,), less its mean; infinite for windows that hardly vary; (p, W)."""
    parts, rows, columns = _GRID
    which, place = images.unique(return_inverse=True)
    found = [torch.empty(0, len(rows))]
    for block in which.split(BLOCK):
        strips = _strips(thumbs[block])  # (u, parts, CELLS, SIDE)
        cut = (strips.flatten(1, 2) @ parts.flatten(0, 1).T).unflatten(2, parts.shape[:2]).unflatten(1, parts.shape[:2])
        squares, mean = cut.square().sum(dim=(2, 4)), cut.mean(dim=(2, 4))  # (u, parts, parts)
        norm = (squares - CELLS**2 * mean.square()).clamp_min(0).sqrt()[:, rows, columns]
        found.append(norm.masked_fill(norm < FLAT * CELLS, torch.inf))
    return torch.cat(found)[place]


def _less_mean(x: Tensor) -> Tensor:
    """Images (p, h, w) less the mean of each."""
    return x - x.mean(dim=(1, 2), keepdim=True)


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
# The parts of the width, and mirrored, side by side: (CELLS, SIDE 2 parts).
_BOTH_WAYS = torch.cat([_GRID[0], _GRID[0].flip(1)]).permute(1, 2, 0).flatten(1).contiguous()
