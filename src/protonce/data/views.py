"""Views of images: two random ones for training, a plain one for features.

A view is drawn per image, as torchvision's recipes do, but computed for the whole batch at once on the device.
Crop, antialiased resize and flip are two matrix products: each row of a matrix holds the weights with which
one output line mixes the input lines. Large images are cropped where they are decoded, by a worker.

Version 1 is MoCo's: crop, grey, jitter, flip. Version 2 is MoCo v2's: crop, jitter, grey, blur, flip.
Any other modality brings its own `Views`.
"""

import dataclasses
import functools
import importlib.util
import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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

TRIES = 10  # at a crop, before the centre is taken
FUSED = importlib.util.find_spec("numba") is not None  # whether a view can be computed in one go
LARGE = 128  # pixels: three channels of it fill a good part of a core's cache
LUMA = (0.2989, 0.587, 0.114)
ALL = frozenset(range(4))  # operations of the jitter: brightness, contrast, saturation, hue
ORDERS = np.array(list(itertools.permutations(range(4))))  # (24, 4)


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
        u = np.concatenate([samples.uniform(f"{which} crop", 4 * TRIES) for which in ("query", "key")])
        return random_boxes(u, np.array([shape, shape]), self.settings.crop_scale)

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
        if (height, width) == image.shape[:2]:  # of whole pixels: torch is twice as fast as Pillow
            pixels = torch.from_numpy(image).permute(2, 0, 1)[None]
            return F.interpolate(pixels, size, mode="bilinear", antialias=True)[0]
        corners = (left, top, left + width, top + height)
        resized = Image.fromarray(image).resize(size, Image.Resampling.BILINEAR, box=corners)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1)

    def _random(self, samples: Samples, which: str) -> Tensor:
        s = self.settings
        flip = samples.uniform(f"{which} flip", 1)[:, 0] < s.flip_p
        if isinstance(samples.data, Tensor):
            images = samples.data[:, 0 if which == "query" else 1]
        else:
            pixels, sizes = samples.data
            boxes = random_boxes(samples.uniform(f"{which} crop", 4 * TRIES), sizes.numpy(), s.crop_scale)
            images, flip = self._cut(pixels, sizes, boxes, flip), np.zeros_like(flip)
        colours = self._draw_colours(samples, which, images.device)
        # A CPU works on large images one by one, so that each stays in the cache from the first operation to the last.
        part = 1 if images.device.type == "cpu" and s.image_size >= LARGE else len(images)
        views = torch.empty(images.shape, device=images.device)
        if part == 1 and FUSED and images.dtype == torch.uint8:
            colours.write(images, flip, s, views)
            return views
        mean, scale = (images.new_tensor(v, dtype=torch.float)[:, None, None] for v in (s.mean, 1 / np.array(s.std)))
        for i in range(0, len(images), part):
            rows = slice(i, i + part)
            cropped = _at(images[rows], flip[rows], lambda crops: crops.flip(3))
            changed = colours.of(rows).apply(_unit(cropped), s.views)
            torch.sub(changed, mean, out=views[rows]).mul_(scale)
        return views

    def _draw_colours(self, samples: Samples, which: str, device: torch.device) -> "_Colours":
        s = self.settings
        jitter, grey, blur = (
            samples.uniform(f"{which} {purpose}", n) for purpose, n in (("jitter", 6), ("grey", 1), ("blur", 2))
        )
        strength = np.array(s.jitter)
        low, high = np.maximum(1 - strength, 0), 1 + strength
        low[3], high[3] = -strength[3], strength[3]
        sigma = s.blur_sigma[0] + blur[:, 1] * (s.blur_sigma[1] - s.blur_sigma[0])
        return _Colours(
            used=frozenset(np.flatnonzero(strength).tolist()),
            jittered=jitter[:, 0] < s.jitter_p,
            order=ORDERS[(jitter[:, 1] * len(ORDERS)).astype(np.int64)],
            factors=torch.from_numpy(low + jitter[:, 2:] * (high - low)).float().to(device),
            grey=grey[:, 0] < s.grey_p,
            blurred=blur[:, 0] < s.blur_p,
            sigma=torch.from_numpy(sigma).float().to(device),
        )

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

    def _normalise(self, images: Tensor) -> Tensor:
        mean, std = (images.new_tensor(v)[:, None, None] for v in (self.settings.mean, self.settings.std))
        return (images - mean) / std


class CropViews(ImageViews):
    """One random crop, flipped or not, and no other change: what classifiers train on (MoCo's linear evaluation)."""

    def __init__(self, settings: Resolved) -> None:
        super().__init__(dataclasses.replace(settings, crop_scale=[0.08, 1.0], jitter_p=0.0, grey_p=0.0, blur_p=0.0))

    def train(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """The view, (B, 3, s, s), normalised; twice, for there is one."""
        view = self._random(samples, "query")
        return view, view

    def random_boxes(self, shape: tuple[int, int], index: int, seed: int, epoch: int) -> NDArray[np.float64]:
        """Where the crop of one image lies; (1, 4)."""
        return super().random_boxes(shape, index, seed, epoch)[:1]


@dataclass(frozen=True)
class _Colours:
    """What was drawn for the colours and the blur of a batch."""

    used: frozenset[int]  # operations of the jitter that have any strength
    jittered: NDArray[np.bool_]  # (B,)
    order: NDArray[np.int64]  # (B, 4)
    factors: Tensor  # (B, 4)
    grey: NDArray[np.bool_]  # (B,)
    blurred: NDArray[np.bool_]  # (B,)
    sigma: Tensor  # (B,)

    def of(self, rows: slice) -> "_Colours":
        """For a part of the batch."""
        of_images = {name: values[rows] for name, values in vars(self).items() if name != "used"}
        return _Colours(used=self.used, **of_images)

    def apply(self, images: Tensor, version: str) -> Tensor:
        """The images with other colours, blurred in version 2; (B, 3, s, s)."""
        operation = functools.partial(jitter, used=self.used)
        if version == "v1":
            images = _at(images, self.grey, greyscale)
            return _at(images, self.jittered, operation, self.factors, self.order)
        images = _at(images, self.jittered, operation, self.factors, self.order)
        images = _at(images, self.grey, greyscale)
        return _at(images, self.blurred, gaussian_blur, self.sigma)

    def write(self, images: Tensor, flip: NDArray[np.bool_], settings: Resolved, views: Tensor) -> None:
        """Whole views of crops (B, 3, s, s) on a CPU, image by image, the same numbers as by `apply`, but faster."""
        from protonce.data import fused

        pixels, out, factors = images.numpy(), views.numpy(), self.factors.numpy()
        mean, scale = np.array(settings.mean, np.float32), (1 / np.array(settings.std)).astype(np.float32)
        sigma = np.where(self.blurred & (settings.views == "v2"), self.sigma.numpy(), np.float32(0))
        used = np.isin(self.order, list(self.used)) & self.jittered[:, None]  # (B, 4)
        first = settings.views == "v1"

        def some(rows: NDArray[np.int64]) -> None:
            scratch = fused.scratch_for(settings.image_size, settings.blur_sigma[1])
            for i in rows:
                order = self.order[i][used[i]]
                drawn = (flip[i], first, order, factors[i], self.grey[i], sigma[i])
                fused.view(pixels[i], *drawn, mean, scale, out[i], scratch)

        threads = torch.get_num_threads()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(some, np.array_split(np.arange(len(images)), threads)))


def _unit(pixels: Tensor) -> Tensor:
    return pixels * (1 / 255) if pixels.dtype == torch.uint8 else pixels


def _at(images: Tensor, where: NDArray[np.bool_], operation: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """The operation done to some of the images, by a mask (B,), with arguments (B, ...) of their own."""
    if where.all():
        return operation(images, *arguments)
    chosen = np.flatnonzero(where)
    if len(chosen) == 0:
        return images
    rows = torch.from_numpy(chosen).to(images.device)
    changed = operation(images[rows], *(a[rows if isinstance(a, Tensor) else chosen] for a in arguments))
    return images.index_copy(0, rows, changed)


def _column(mask: NDArray[np.bool_], images: Tensor) -> Tensor:
    return torch.from_numpy(mask).to(images.device)[:, None, None, None]


def random_boxes(u: NDArray[np.float64], sizes: NDArray[np.int64], scale: list[float]) -> NDArray[np.float64]:
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
    red, green, blue = images.unbind(dim=1)
    luma = (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
    return luma[:, None]  # (B, 1, h, w)


def jitter(images: Tensor, factors: Tensor, order: NDArray[np.int64], used: frozenset[int] = ALL) -> Tensor:
    """Brightness, contrast, saturation and hue with each image's own factors and order.

    Args:
        images: in [0, 1], (B, 3, h, w).
        factors: brightness, contrast, saturation (1: no change) and hue (0: no change), (B, 4).
        order: a permutation of 0 to 3 for each image, (B, 4).
        used: which of the four change anything.
    """
    operations = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    for turn in order.T:
        for which in used & set(turn.tolist()):
            images = _at(images, turn == which, operations[which], factors[:, which])
    return images


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    factor = factor[:, None, None, None]
    return (images * factor).add_(other * (1 - factor)).clamp_(0, 1)  # lerp is slower where it has to broadcast


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black; factor is (B,)."""
    return (images * factor[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean luma of each image; factor is (B,)."""
    return _blend(images, _luma(images.mean(dim=(2, 3), keepdim=True)), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image; factor is (B,)."""
    return _blend(images, _luma(images), factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue (HSV) by a share of the circle; shift is (B,) in [-0.5, 0.5].

    Written without comparisons, which take ten times as long on a CPU as sums do.
    """
    red, green, blue = images.unbind(dim=1)  # (B, h, w)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    # The hue, times chroma, in sixths of the circle, by which channel is the largest: `sign` is 0 there, else 1.
    hue, if_green, if_red = (red - green).add_(chroma, alpha=4), (blue - red).add_(chroma, alpha=2), green - blue
    hue.sub_(if_green).mul_((value - green).sign_()).add_(if_green)
    hue.sub_(if_red).mul_((value - red).sign_()).add_(if_red)
    hue.div_(chroma.clamp_min(1e-12)).add_(6 * shift[:, None, None] + 5)
    hue.sub_((hue / 6).floor_(), alpha=6)  # modulo 6
    # Each channel falls from `value` by `chroma` along a trapezium of the hue, one third of the circle apart.
    turned = torch.empty_like(images)
    falls = ((hue - 2).abs_().neg_().add_(2), (hue - 4).abs_().neg_().add_(2), (hue - 3).abs_().sub_(1))
    for channel, fall in enumerate(falls):
        torch.addcmul(value, fall.clamp_(0, 1), chroma, value=-1, out=turned[:, channel])
    return turned


def gaussian_blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur each image with its own sigma (B,), in pixels; edges are continued as they are."""
    reaches = (3 * sigma).ceil()  # what lies beyond changes no pixel by half a step of its 255
    reach = int(reaches.max())
    offset = torch.arange(-reach, reach + 1, device=sigma.device)
    shares = torch.exp(-0.5 * (offset / sigma[:, None]) ** 2) * (offset.abs() <= reaches[:, None])
    shares = shares / shares.sum(dim=1, keepdim=True)  # (B, 2 reach + 1)
    first, *others = shares.T[:, :, None, None, None].unbind()  # (B, 1, 1, 1) each
    for dim, pad in ((3, (reach, reach, 0, 0)), (2, (0, 0, reach, reach))):
        padded, n = F.pad(images, pad, mode="replicate"), images.shape[dim]
        images = padded.narrow(dim, 0, n) * first
        for i, share in enumerate(others, start=1):
            images.addcmul_(padded.narrow(dim, i, n), share)
    return images
