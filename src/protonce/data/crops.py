"""Random and centre crops: their boxes, and how they are cut and resized.

Small images are cropped for the whole batch at once, on the device. Crop, antialiased resize and flip are two matrix
products: each row of a matrix contains the weights of the input lines in one output line. Large images are
cropped one by one, by the worker that decodes them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

TRIES = 10  # random crops to try before falling back to the centre
Boxes = NDArray[np.float64]  # (B, 4): top, left, height, width in pixels


class Squares(NamedTuple):
    """A batch of small images, each resized to a square of side S."""

    pixels: Tensor  # (B, 3, S, S) uint8
    sizes: Tensor  # (B, 2): height and width of the original images, on the CPU


def random_boxes(u: NDArray[np.float64], sizes: NDArray[np.int64], scale: Sequence[float]) -> Boxes:
    """RandomResizedCrop's boxes: ten tries at an area and an aspect ratio of 3/4 to 4/3, else the centre.

    Args:
        u: random numbers, (B, 4 TRIES).
        sizes: height and width of each image, (B, 2).
        scale: smallest and largest share of the area.

    Returns:
        top, left, height, width in whole pixels, (B, 4)
    """
    u = u.reshape(-1, TRIES, 4)
    h, w = (sizes[:, [i]].astype(np.float64) for i in (0, 1))  # (B, 1)
    area = h * w * (scale[0] + u[..., 0] * (scale[1] - scale[0]))  # (B, tries)
    ratio = np.exp(math.log(3 / 4) + u[..., 1] * (math.log(4 / 3) - math.log(3 / 4)))
    height, width = np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))
    fits = (height > 0) & (height <= h) & (width > 0) & (width <= w)
    first = fits.argmax(axis=1)[:, None]  # (B, 1)
    height, width = (np.take_along_axis(v, first, axis=1) for v in (height, width))
    top = np.floor(np.take_along_axis(u[..., 2], first, axis=1) * (h - height + 1))
    left = np.floor(np.take_along_axis(u[..., 3], first, axis=1) * (w - width + 1))

    # No random crop fits: the largest centre crop that the aspect ratio allows.
    limited_h, limited_w = np.minimum(h, np.rint(w / (3 / 4))), np.minimum(w, np.rint(h * (4 / 3)))
    fallback = [(h - limited_h) // 2, (w - limited_w) // 2, limited_h, limited_w]
    any_fits = fits.any(axis=1, keepdims=True)
    chosen = [np.where(any_fits, a, b) for a, b in zip((top, left, height, width), fallback, strict=True)]
    return np.concatenate(chosen, axis=1)


def centre_boxes(sizes: NDArray[np.int64], resize: int, size: int) -> Boxes:
    """Boxes, in original pixels, of the centre crop of `size` after the shorter side is resized to `resize`; (B, 4)."""
    h, w = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    side = np.minimum(h, w) * min(size / resize, 1.0)
    return np.stack([(h - side) / 2, (w - side) / 2, side, side], axis=1)


def crop_resize(
    images: Tensor,
    boxes: Boxes,
    size: int,
    flip: NDArray[np.bool_] | None = None,
    resize_first: bool = False,
) -> Tensor:
    """Crop each image to its box, resize it with an antialiased triangle filter, and flip it if requested.

    Args:
        images: (B, 3, H, W).
        boxes: top, left, height, width, (B, 4).
        size: side of the result.
        flip: whether to mirror left and right, (B,).
        resize_first: resize the whole image before cropping, so that lines outside the box contribute too.

    Returns:
        (B, 3, size, size)
    """
    box = torch.from_numpy(boxes).float().to(images.device)
    rows = resize_weights(box[:, 0], box[:, 2], images.shape[2], size, resize_first)  # (B, size, H)
    columns = resize_weights(box[:, 1], box[:, 3], images.shape[3], size, resize_first)  # (B, size, W)
    if flip is not None:
        mirrored = torch.from_numpy(flip).to(images.device)[:, None, None]
        columns = torch.where(mirrored, columns.flip(1), columns)
    return rows[:, None] @ images @ columns[:, None].mT


def resize_weights(start: Tensor, length: Tensor, n: int, size: int, resize_first: bool) -> Tensor:
    """Weights of the n input lines in each of `size` output lines of [start, start + length); (B, size, n)."""
    step = (length / size)[:, None, None]  # input lines per output line
    reach = step.clamp_min(1)  # half the width of the triangle: wider than a line only when shrinking
    centre = start[:, None, None] + (torch.arange(size, device=start.device)[:, None] + 0.5) * step  # (B, size, 1)
    line = torch.arange(n, device=start.device) + 0.5  # (n,)
    weights = (1 - (line - centre).abs() / reach).clamp_min(0)
    if not resize_first:  # weight a line by the part of it inside the crop
        first, last = start[:, None, None], (start + length)[:, None, None]
        inside = torch.minimum(line + 0.5, last) - torch.maximum(line - 0.5, first)
        weights = weights * inside.clamp(0, 1)
    return weights / weights.sum(dim=2, keepdim=True)


def crop_squares(
    squares: Squares, boxes: Boxes, size: int, flip: NDArray[np.bool_] | None = None, resize_first: bool = False
) -> Tensor:
    """`crop_resize` of squares, with boxes in pixels of the original images; (B, 3, size, size) in [0, 1]."""
    scale = squares.pixels.shape[-1] / np.tile(squares.sizes.numpy(), 2)  # (B, 4)
    return crop_resize(to_float(squares.pixels), boxes * scale, size, flip, resize_first)


def crop_array(image: NDArray[np.uint8], box: NDArray[np.float64], size: int, resize_first: bool = False) -> Tensor:
    """`crop_resize` of one large image, in a worker.

    Args:
        image: (h, w, 3).
        box: top, left, height, width, (4,); may be fractional in an image decoded at reduced size.
        size: side of the result.
        resize_first: as in `crop_resize`.

    Returns:
        (3, size, size) uint8
    """
    top, left, height, width = box
    if not resize_first:
        y, x = math.floor(top + 1e-6), math.floor(left + 1e-6)
        image = image[y : math.ceil(top + height - 1e-6), x : math.ceil(left + width - 1e-6)]
        top, left = max(top - y, 0.0), max(left - x, 0.0)
        height, width = min(height, image.shape[0] - top), min(width, image.shape[1] - left)
    if (height, width) == image.shape[:2]:  # whole pixels: torch is twice as fast as Pillow
        pixels = torch.from_numpy(image).permute(2, 0, 1)[None]
        return F.interpolate(pixels, (size, size), mode="bilinear", antialias=True)[0]
    corners = (left, top, left + width, top + height)
    resized = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR, box=corners)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def reduction(boxes: Boxes, sizes: Sequence[int]) -> int:
    """Largest factor (8, 4, 2 or 1) by which an image can be reduced so that no crop has to be enlarged.

    Args:
        boxes: of all crops of the image, (n, 4).
        sizes: side to which each crop is resized, (n,).
    """
    sides = boxes[:, 2:].min(axis=1)  # (n,)
    return next(factor for factor in (8, 4, 2, 1) if factor == 1 or (sides / factor >= np.array(sizes)).all())


def cut_tiles(images: Tensor, tiles: int, tile_size: int, u: NDArray[np.float64]) -> Tensor:
    """Cut images into a grid of tiles x tiles cells, and take a random square of each cell.

    Cells have `s // tiles` pixels; the remaining lines at the right and at the bottom are dropped.

    Args:
        images: (B, 3, s, s).
        tiles: cells in a row and in a column.
        tile_size: side of the squares, at most that of a cell.
        u: random numbers in [0, 1), (B, 2 tiles²).

    Returns:
        the squares in row-major order of their cells, (B, tiles², 3, tile_size, tile_size)
    """
    cell = images.shape[-1] // tiles
    corners = np.stack(np.divmod(np.arange(tiles**2), tiles), axis=1) * cell  # (tiles², 2) top and left of the cells
    corners = corners + np.floor(u.reshape(-1, tiles**2, 2) * (cell - tile_size + 1)).astype(np.int64)
    top, left = torch.from_numpy(corners).to(images.device).unbind(dim=2)  # (B, tiles²)
    line = torch.arange(tile_size, device=images.device)
    y = (top[:, :, None] + line)[:, :, :, None]  # (B, tiles², tile_size, 1)
    x = (left[:, :, None] + line)[:, :, None, :]  # (B, tiles², 1, tile_size)
    row = torch.arange(len(images), device=images.device)[:, None, None, None]
    return images.permute(0, 2, 3, 1)[row, y, x].permute(0, 1, 4, 2, 3).contiguous()


def to_float(pixels: Tensor) -> Tensor:
    """Scale uint8 pixels to [0, 1]; other types are returned unchanged."""
    return pixels * (1 / 255) if pixels.dtype == torch.uint8 else pixels
