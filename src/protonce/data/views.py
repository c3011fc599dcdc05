"""Views of images: two random ones for training, a plain one for features.

A view is drawn per image, as torchvision's recipes do, but computed for the whole batch at once on the device.
Crop, antialiased resize and flip are two matrix products: each row of a matrix holds the weights with which
one output line mixes the input lines. Large images are cropped where they are decoded, by a worker.

Version 1 is MoCo's: crop, grey, jitter, flip. Version 2 is MoCo v2's: crop, jitter, grey, blur, flip.
Any other modality brings its own `Views`.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from protonce import randomness
from protonce.config import Resolved

LUMA = (0.2989, 0.587, 0.114)
ORDERS = torch.tensor(list(itertools.permutations(range(4))))  # (24, 4)


@dataclass(frozen=True)
class Samples:
    """A batch before its views: the items, which images they are, and where their random numbers come from."""

    data: Any  # collated items; for images see `Views`
    index: Tensor  # (B,) int64, on the CPU
    seed: int
    epoch: int

    def uniform(self, purpose: str, n: int) -> NDArray[np.float64]:
        """N numbers in [0, 1) for each item, a function of seed, purpose, epoch and index alone; (B, n)."""
        return randomness.uniform(self.seed, purpose, self.epoch, self.index.numpy(), n)


class Views(Protocol):
    """What the training loop asks of views; tensors arrive and leave on the device."""

    def train(self, samples: Samples, /) -> tuple[Tensor, Tensor]:
        """Two random views: query and key."""
        ...

    def plain(self, samples: Samples, /) -> Tensor:
        """The view from which features are taken; not random."""
        ...


class ImageViews:
    """v1 and v2 of the paper. `samples.data` is one of two things.

    - Small images: `(pixels, sizes)`, whole images squeezed into one square, (B, 3, S, S) uint8, and the height
      and width they had, (B, 2). Crops are drawn for the true shape and cut here.
    - Large images: crops that a worker has cut with `crop_pair` or `crop_plain`, (B, 2 or 1, 3, s, s) uint8.
    """

    def __init__(self, settings: Resolved) -> None:
        self.settings = settings

    def train(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """Two random views of each image, (B, 3, s, s) each, normalised."""
        query, key = (self._random(samples, which) for which in ("query", "key"))
        return query, key

    def plain(self, samples: Samples) -> Tensor:
        """Shorter side resized, then the centre crop; (B, 3, s, s), normalised."""
        if isinstance(samples.data, Tensor):
            return self._normalise(_unit(samples.data[:, 0]))
        pixels, sizes = samples.data
        boxes = centre_boxes(sizes.numpy(), self.settings.plain_resize, self.settings.image_size)
        return self._normalise(self._cut(pixels, sizes, boxes, resize_first=True))

    def random_boxes(self, shape: tuple[int, int], index: int, seed: int, epoch: int) -> NDArray[np.float64]:
        """Where both random crops of one image lie; (2, 4)."""
        samples = Samples(None, torch.tensor([index]), seed, epoch)
        boxes = [
            random_boxes(samples, which, np.array([shape]), self.settings.crop_scale) for which in ("query", "key")
        ]
        return np.concatenate(boxes)

    def plain_boxes(self, shape: tuple[int, int]) -> NDArray[np.float64]:
        """Where the centre crop of one image lies; (1, 4)."""
        return centre_boxes(np.array([shape]), self.settings.plain_resize, self.settings.image_size)

    def reduction(self, boxes: NDArray[np.float64]) -> int:
        """By what an image may be divided so that each of its crops is still as large as the views."""
        least = boxes[:, 2:].min()
        return next(factor for factor in (8, 4, 2, 1) if factor == 1 or least / factor >= self.settings.image_size)

    def crop(self, image: NDArray[np.uint8], boxes: NDArray[np.float64], resize_first: bool) -> Tensor:
        """Crops of one large image, cut by a worker; (boxes, 3, s, s) uint8.

        Args:
            image: (h, w, 3).
            boxes: top, left, height, width, (boxes, 4).
            resize_first: lines beside the box have their part in it, as in `crop_resize`.
        """
        return torch.stack([self._resize(image, box, resize_first) for box in boxes])

    def _resize(self, image: NDArray[np.uint8], box: NDArray[np.float64], resize_first: bool) -> Tensor:
        top, left, height, width = box
        if not resize_first:
            y, x = math.floor(top + 1e-6), math.floor(left + 1e-6)  # of a reduced image a box need not be whole pixels
            image = image[y : math.ceil(top + height - 1e-6), x : math.ceil(left + width - 1e-6)]
            top, left = max(top - y, 0.0), max(left - x, 0.0)
            height, width = min(height, image.shape[0] - top), min(width, image.shape[1] - left)
        size = (self.settings.image_size, self.settings.image_size)
        corners = (left, top, left + width, top + height)
        resized = Image.fromarray(image).resize(size, Image.Resampling.BILINEAR, box=corners)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1)

    def _random(self, samples: Samples, which: str) -> Tensor:
        s = self.settings
        flip = samples.uniform(f"{which} flip", 1)[:, 0] < s.flip_p
        if isinstance(samples.data, Tensor):
            images = _unit(samples.data[:, 0 if which == "query" else 1])
            images = torch.where(_column(flip, images), images.flip(3), images)
        else:
            pixels, sizes = samples.data
            boxes = random_boxes(samples, which, sizes.numpy(), s.crop_scale)
            images = self._cut(pixels, sizes, boxes, flip)
        jitter = samples.uniform(f"{which} jitter", 6)
        grey = _column(samples.uniform(f"{which} grey", 1)[:, 0] < s.grey_p, images)
        if s.views == "v1":
            images = torch.where(grey, greyscale(images), images)
            images = self._jitter(images, jitter)
        else:
            images = self._jitter(images, jitter)
            images = torch.where(grey, greyscale(images), images)
            images = self._blur(images, samples.uniform(f"{which} blur", 2))
        return self._normalise(images)

    def _cut(
        self,
        pixels: Tensor,
        sizes: Tensor,
        boxes: NDArray[np.float64],
        flip: NDArray[np.bool_] | None = None,
        resize_first: bool = False,
    ) -> Tensor:
        """Crop, resize and flip whole images that were squeezed into a square of side S."""
        side = pixels.shape[-1]
        scale = side / np.tile(sizes.numpy(), 2)  # (B, 4): boxes in pixels of the true image -> of the square
        return crop_resize(_unit(pixels), boxes * scale, self.settings.image_size, flip, resize_first)

    def _jitter(self, images: Tensor, u: NDArray[np.float64]) -> Tensor:
        """Colour jitter: four factors and their order for each image; u is (B, 6)."""
        chosen = torch.from_numpy(np.flatnonzero(u[:, 0] < self.settings.jitter_p))
        if len(chosen) == 0 or not any(self.settings.jitter):
            return images
        u = u[chosen.numpy()]
        order = ORDERS[torch.from_numpy((u[:, 1] * len(ORDERS)).astype(np.int64))]  # (b, 4)
        strength = np.array(self.settings.jitter)
        low, high = np.maximum(1 - strength, 0), 1 + strength
        low[3], high[3] = -strength[3], strength[3]
        factors = torch.from_numpy(low + u[:, 2:] * (high - low)).float()  # (b, 4)
        chosen = chosen.to(images.device)
        result = images.clone(memory_format=torch.contiguous_format)
        result[chosen] = jitter(images[chosen], factors.to(images.device), order.to(images.device))
        return result

    def _blur(self, images: Tensor, u: NDArray[np.float64]) -> Tensor:
        chosen = torch.from_numpy(np.flatnonzero(u[:, 0] < self.settings.blur_p))
        if len(chosen) == 0:
            return images
        low, high = self.settings.blur_sigma
        sigma = torch.from_numpy(low + u[chosen.numpy(), 1] * (high - low)).float()
        chosen = chosen.to(images.device)
        result = images.clone()
        result[chosen] = gaussian_blur(images[chosen], sigma.to(images.device))
        return result

    def _normalise(self, images: Tensor) -> Tensor:
        mean, std = (images.new_tensor(v)[:, None, None] for v in (self.settings.mean, self.settings.std))
        return (images - mean) / std


def _unit(pixels: Tensor) -> Tensor:
    return pixels.float() / 255


def _column(mask: NDArray[np.bool_], images: Tensor) -> Tensor:
    return torch.from_numpy(mask).to(images.device)[:, None, None, None]


def random_boxes(samples: Samples, which: str, sizes: NDArray[np.int64], scale: list[float]) -> NDArray[np.float64]:
    """RandomResizedCrop's boxes: ten tries at an area and an aspect ratio of 3/4 to 4/3, else the centre.

    Args:
        samples: gives the random numbers.
        which: "query" or "key".
        sizes: height and width of each image, (B, 2).
        scale: smallest and largest share of the area.

    Returns:
        top, left, height, width in whole pixels, (B, 4)
    """
    tries = 10
    u = samples.uniform(f"{which} crop", 4 * tries).reshape(-1, tries, 4)
    h, w = (sizes[:, [i]].astype(np.float64) for i in (0, 1))  # (B, 1)
    area = h * w * (scale[0] + u[..., 0] * (scale[1] - scale[0]))  # (B, tries)
    ratio = np.exp(math.log(3 / 4) + u[..., 1] * (math.log(4 / 3) - math.log(3 / 4)))
    height, width = np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))
    fits = (height > 0) & (height <= h) & (width > 0) & (width <= w)
    first = fits.argmax(axis=1)[:, None]  # (B, 1)
    height, width = (np.take_along_axis(v, first, axis=1) for v in (height, width))
    top = np.floor(np.take_along_axis(u[..., 2], first, axis=1) * (h - height + 1))
    left = np.floor(np.take_along_axis(u[..., 3], first, axis=1) * (w - width + 1))

    # No try fitted: the centre, as much of it as the aspect ratio allows.
    limited_h, limited_w = np.minimum(h, np.rint(w / (3 / 4))), np.minimum(w, np.rint(h * (4 / 3)))
    fallback = [(h - limited_h) // 2, (w - limited_w) // 2, limited_h, limited_w]
    any_fits = fits.any(axis=1, keepdims=True)
    chosen = [np.where(any_fits, a, b) for a, b in zip((top, left, height, width), fallback, strict=True)]
    return np.concatenate(chosen, axis=1)


def centre_boxes(sizes: NDArray[np.int64], resize: int, size: int) -> NDArray[np.float64]:
    """Where, in an image's own pixels, the centre crop of `size` lies after its shorter side became `resize`."""
    h, w = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    side = np.minimum(h, w) * min(size / resize, 1.0)
    return np.stack([(h - side) / 2, (w - side) / 2, side, side], axis=1)


def crop_resize(
    images: Tensor,
    boxes: NDArray[np.float64],
    size: int,
    flip: NDArray[np.bool_] | None = None,
    resize_first: bool = False,
) -> Tensor:
    """Crop each image to its box, resize with an antialiased triangle filter, and flip where asked.

    Args:
        images: (B, 3, H, W).
        boxes: top, left, height, width, (B, 4).
        size: side of the result.
        flip: whether to mirror left and right, (B,).
        resize_first: the whole image is resized and then cropped, so lines beside the box have their part in it.

    Returns:
        (B, 3, size, size)
    """
    box = torch.from_numpy(boxes).float().to(images.device)
    rows = _resize_weights(box[:, 0], box[:, 2], images.shape[2], size, resize_first)  # (B, size, H)
    columns = _resize_weights(box[:, 1], box[:, 3], images.shape[3], size, resize_first)  # (B, size, W)
    if flip is not None:
        columns = torch.where(_column(flip, images)[..., 0], columns.flip(1), columns)
    return rows[:, None] @ images @ columns[:, None].mT


def _resize_weights(start: Tensor, length: Tensor, n: int, size: int, resize_first: bool) -> Tensor:
    """How each of `size` output lines mixes the n input lines of [start, start + length); (B, size, n)."""
    step = (length / size)[:, None, None]  # input lines per output line
    reach = step.clamp_min(1)  # half the width of the triangle: wider than a line only when shrinking
    centre = start[:, None, None] + (torch.arange(size, device=start.device)[:, None] + 0.5) * step  # (B, size, 1)
    line = torch.arange(n, device=start.device) + 0.5  # (n,)
    weights = (1 - (line - centre).abs() / reach).clamp_min(0)
    if not resize_first:  # a line counts by as much of it as lies inside the crop
        first, last = start[:, None, None], (start + length)[:, None, None]
        inside = torch.minimum(line + 0.5, last) - torch.maximum(line - 0.5, first)
        weights = weights * inside.clamp(0, 1)
    return weights / weights.sum(dim=2, keepdim=True)


def greyscale(images: Tensor) -> Tensor:
    """Luma in all three channels; (B, 3, h, w)."""
    return _luma(images).expand_as(images)


def _luma(images: Tensor) -> Tensor:
    weights = images.new_tensor(LUMA)[:, None, None]
    return (images * weights).sum(dim=1, keepdim=True)  # (B, 1, h, w)


def jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue with each image's own factors and order.

    Args:
        images: in [0, 1], (B, 3, h, w).
        factors: brightness, contrast, saturation (1: no change) and hue (0: no change), (B, 4).
        order: a permutation of 0 to 3 for each image, (B, 4).
    """
    operations = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    result = images.clone()
    for turn in range(4):
        for which, operation in enumerate(operations):
            rows = (order[:, turn] == which).nonzero()[:, 0]
            if len(rows):
                result[rows] = operation(result[rows], factors[rows, which])
    return result


def _blend(images: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    factor = factor[:, None, None, None]
    return (factor * images + (1 - factor) * other).clamp(0, 1)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black; factor is (B,)."""
    return _blend(images, 0.0, factor)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean luma of each image; factor is (B,)."""
    return _blend(images, _luma(images).mean(dim=(1, 2, 3), keepdim=True), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image; factor is (B,)."""
    return _blend(images, _luma(images), factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue (HSV) by a share of the circle; shift is (B,) in [-0.5, 0.5]."""
    red, green, blue = images.unbind(dim=1)  # (B, h, w)
    value, low = images.amax(dim=1), images.amin(dim=1)
    chroma = value - low
    safe = torch.where(chroma == 0, 1.0, chroma)
    sector = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = sector + 6 * shift[:, None, None]
    # Each channel falls from `value` by `chroma` along a trapezium of the hue, one third of the circle apart.
    offsets = images.new_tensor([5.0, 3.0, 1.0])[:, None, None]
    k = (offsets + hue[:, None]) % 6  # (B, 3, h, w)
    return value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)


def gaussian_blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur each image with its own sigma (B,), in pixels; edges are continued as they are."""
    reach = math.ceil(4 * float(sigma.max()))
    rows = _blur_weights(images.shape[2], sigma, reach)  # (B, h, h + 2 reach)
    columns = _blur_weights(images.shape[3], sigma, reach)
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    return rows[:, None] @ padded @ columns[:, None].mT


def _blur_weights(n: int, sigma: Tensor, reach: int) -> Tensor:
    """The Gaussian with which each of n output lines mixes the padded input lines; (B, n, n + 2 reach)."""
    source = torch.arange(-reach, n + reach, device=sigma.device)
    distance = (torch.arange(n, device=sigma.device)[:, None] - source) / sigma[:, None, None]
    weights = torch.exp(-0.5 * distance**2)
    return weights / weights.sum(dim=2, keepdim=True)
