"""Views of images: random views for training, as many as a method needs, and a plain view for features.

A `ViewSpec` describes each random view. Its parameters are sampled per image, as in torchvision, but it is computed for
the whole batch at once on the device. Version 1 is MoCo's order of operations: crop, grey, jitter, flip. Version 2 is
MoCo v2's: crop, jitter, grey, blur, flip. Other modalities define their own `Views`.
"""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonce import randomness
from protonce.config import Resolved
from protonce.data.colours import Colours, ColourSettings, apply_where
from protonce.data.crops import (
    TRIES,
    Boxes,
    Squares,
    centre_boxes,
    crop_array,
    crop_squares,
    cut_tiles,
    random_boxes,
    reduction,
    to_float,
)
from protonce.data.pictures import decode

FUSED = importlib.util.find_spec("numba") is not None  # whether numba can compile the colour operations
LARGE = 128  # pixels: three channels of this side fill a good part of a core's cache


@dataclass(frozen=True)
class Samples:
    """A batch before its views: the items, their indices, and the seed of their random numbers."""

    data: Any  # collated items; for images see `ImageViews`
    index: Tensor  # (B,) int64, on the CPU
    seed: int
    epoch: int

    def uniform(self, purpose: str, n: int) -> NDArray[np.float64]:
        """Random numbers in [0, 1) for each item, (B, n); they depend only on seed, purpose, epoch and index."""
        return randomness.uniform(self.seed, purpose, self.epoch, self.index.numpy(), n)


@dataclass(frozen=True)
class Item:
    """One item before collation: the argument of `prepare` in a worker."""

    index: int
    seed: int
    epoch: int
    plain: bool  # True: for the plain view; False: for random views
    load: Callable[[], Any]  # loads the item; for images all pixels, (h, w, 3) uint8
    encoded: Callable[[], BinaryIO] | None = None  # opens the encoded image; None: there is no file

    def uniform(self, purpose: str, n: int) -> NDArray[np.float64]:
        """The same random numbers as `Samples.uniform` for this item; (n,)."""
        return randomness.uniform(self.seed, purpose, self.epoch, np.array([self.index]), n).reshape(n)


class Views(Protocol):
    """Interface of views; inputs and outputs are on the device.

    Views may have two optional members:

    - `prepare(item: Item) -> Any`: prepares an item in a worker, before collation. It returns a tensor, or a tuple or
      dict of tensors. Without it, items are collated as they are loaded.
    - `takes_squares: bool`: if True, sources of small images are decoded once and kept in memory; `samples.data` is
      then `Squares`, and `prepare` is not called.
    """

    def train(self, samples: Samples, /) -> tuple[Tensor, ...]:
        """Random views; the first dimension of each is the batch."""
        ...

    def plain(self, samples: Samples, /) -> Tensor:
        """The deterministic view from which features are computed."""
        ...


@dataclass(frozen=True)
class ViewSpec:
    """Parameters of one random view. A field that is None takes the value of the setting with the same name.

    Attributes:
        name: random numbers depend on seed, name, epoch and image index.
        size: side of the view in pixels; None: `image_size`.
        crop_scale: smallest and largest share of the area in the crop.
        flip_p: probability of a horizontal flip.
        jitter: strength of brightness, contrast, saturation and hue.
        jitter_p: probability of colour jitter.
        grey_p: probability of a grey view.
        blur_p: probability of Gaussian blur; None: the setting in v2, 0 in v1.
        blur_sigma: smallest and largest sigma of the blur in pixels.
        solarise_p: probability of solarisation, after the blur (BYOL).
        tiles: t > 0 cuts the view into a grid of t x t cells and takes a random square of each, in row-major order
            (jigsaw, PIRL). The view is then (B, t², 3, tile_size, tile_size).
        tile_size: side of these squares in pixels; 0: the whole cell, size // t.

    Raises:
        ValueError: a value is out of range.
    """

    name: str
    size: int | None = None
    crop_scale: Sequence[float] | None = None
    flip_p: float | None = None
    jitter: Sequence[float] | None = None
    jitter_p: float | None = None
    grey_p: float | None = None
    blur_p: float | None = None
    blur_sigma: Sequence[float] | None = None
    solarise_p: float = 0.0
    tiles: int = 0
    tile_size: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a view needs a name")
        if self.size is not None and self.size < 1:
            self._refuse("size", "at least 1")
        for field in ("flip_p", "jitter_p", "grey_p", "blur_p", "solarise_p"):
            value = getattr(self, field)
            if value is not None and not 0 <= value <= 1:
                self._refuse(field, "a probability between 0 and 1")
        if self.crop_scale is not None and not (_is_range(self.crop_scale) and self.crop_scale[1] <= 1):
            self._refuse("crop_scale", "two values with 0 < low <= high <= 1")
        if self.blur_sigma is not None and not _is_range(self.blur_sigma):
            self._refuse("blur_sigma", "two values with 0 < low <= high")
        if self.jitter is not None and not (len(self.jitter) == 4 and min(self.jitter) >= 0 and self.jitter[3] <= 0.5):
            self._refuse("jitter", "four strengths of at least 0, the hue at most 0.5")
        if self.tiles < 0:
            self._refuse("tiles", "at least 0")
        if self.tile_size < 0 or (self.tile_size and not self.tiles):
            self._refuse("tile_size", "at least 0, and 0 without tiles")

    def _refuse(self, field: str, expected: str) -> None:
        raise ValueError(f"view {self.name!r}: {field} must be {expected}, got {getattr(self, field)}")


def _is_range(values: Sequence[float]) -> bool:
    return len(values) == 2 and 0 < values[0] <= values[1]


TWO_VIEWS = (ViewSpec("query"), ViewSpec("key"))  # MoCo, SimCLR, PCL


@dataclass(frozen=True)
class _View:
    """A `ViewSpec` in which settings replace None."""

    name: str
    size: int
    crop_scale: Sequence[float]
    flip_p: float
    colours: ColourSettings
    tiles: int
    tile_size: int

    @classmethod
    def of(cls, spec: ViewSpec, settings: Resolved) -> "_View":
        def value(field: str) -> Any:
            own = getattr(spec, field)
            return getattr(settings, field) if own is None else own

        size, v1 = spec.size or settings.image_size, settings.views == "v1"
        cell = size // spec.tiles if spec.tiles else 0
        if spec.tiles and not 1 <= (spec.tile_size or cell) <= cell:
            wanted = f"{spec.tiles} x {spec.tiles} tiles of {spec.tile_size or 1} pixels"
            raise ValueError(f"view {spec.name!r} of {size} pixels cannot be cut into {wanted}")
        colours = ColourSettings(
            jitter=value("jitter"),
            jitter_p=value("jitter_p"),
            grey_p=value("grey_p"),
            blur_p=0.0 if v1 and spec.blur_p is None else value("blur_p"),
            blur_sigma=value("blur_sigma"),
            solarise_p=spec.solarise_p,
            grey_first=v1,
        )
        scale, flip_p = value("crop_scale"), value("flip_p")
        return cls(spec.name, size, scale, flip_p, colours, spec.tiles, spec.tile_size or cell)


class ImageViews:
    """Random and plain views of images.

    `samples.data` is one of two things:

    - Small images: `Squares`. Crops are sampled for the shape of the original image and cut here.
    - Large images: the crops that `prepare` has cut in a worker, one (B, 3, s, s) uint8 per view.

    Args:
        settings: of the run.
        specs: one per random view, in the order in which `train` returns them.

    Raises:
        ValueError: there is no specification, two have the same name, or tiles do not fit into their view.
    """

    takes_squares = True

    def __init__(self, settings: Resolved, specs: Sequence[ViewSpec] = TWO_VIEWS) -> None:
        if len({spec.name for spec in specs}) < max(len(specs), 1):
            names = ", ".join(repr(spec.name) for spec in specs)
            raise ValueError(f"there must be at least one view, and names must be unique, got {names or 'none'}")
        self.settings, self.specs = settings, tuple(specs)
        self._views = [_View.of(spec, settings) for spec in specs]

    def train(self, samples: Samples) -> tuple[Tensor, ...]:
        """One normalised view per specification; (B, 3, s, s), with tiles (B, t², 3, tile_size, tile_size)."""
        return tuple(self._random(samples, i) for i in range(len(self._views)))

    def plain(self, samples: Samples) -> Tensor:
        """Shorter side resized, then the centre crop; (B, 3, s, s), normalised."""
        s = self.settings
        if isinstance(samples.data, Squares):
            boxes = centre_boxes(samples.data.sizes.numpy(), s.plain_resize, s.image_size)
            images = crop_squares(samples.data, boxes, s.image_size, resize_first=True)
        else:
            images = to_float(samples.data[0])
        mean, std = (images.new_tensor(v)[:, None, None] for v in (s.mean, s.std))
        return (images - mean) / std

    def prepare(self, item: Item) -> tuple[Tensor, ...]:
        """The crops of one large image, (3, s, s) uint8 per view.

        A JPEG is decoded once, at the smallest size at which no crop has to be enlarged. So the other views of an image
        affect only the size at which it is decoded, not the position of a crop.
        """
        sizes = [self.settings.image_size] if item.plain else [view.size for view in self._views]
        boxes = functools.cache(lambda *shape: self.boxes(item, shape))  # `decode` knows the shape
        if item.encoded is None:
            pixels = item.load()
            shape, factor = pixels.shape[:2], 1.0
        else:
            with item.encoded() as file:
                pixels, shape, factor = decode(file, lambda *shape: reduction(boxes(*shape), sizes))
        pairs = zip(boxes(*shape) / factor, sizes, strict=True)
        return tuple(crop_array(pixels, box, size, resize_first=item.plain) for box, size in pairs)

    def boxes(self, item: Item, shape: tuple[int, int]) -> Boxes:
        """Boxes of the crops of an image with this height and width; (views, 4), for the plain view (1, 4)."""
        sizes = np.array([shape])
        if item.plain:
            return centre_boxes(sizes, self.settings.plain_resize, self.settings.image_size)
        return np.concatenate(
            [random_boxes(item.uniform(f"{v.name} crop", 4 * TRIES), sizes, v.crop_scale) for v in self._views]
        )

    def _random(self, samples: Samples, i: int) -> Tensor:
        view = self._views[i]

        def uniform(purpose: str, n: int) -> NDArray[np.float64]:
            return samples.uniform(f"{view.name} {purpose}", n)

        flip = uniform("flip", 1)[:, 0] < view.flip_p
        if isinstance(samples.data, Squares):
            boxes = random_boxes(uniform("crop", 4 * TRIES), samples.data.sizes.numpy(), view.crop_scale)
            images = crop_squares(samples.data, boxes, view.size, flip)
            flip = np.zeros_like(flip)
        else:
            images = samples.data[i]
        images = self._render(images, flip, Colours.sample(uniform, view.colours, images.device))
        if view.tiles:
            images = cut_tiles(images, view.tiles, view.tile_size, uniform("tiles", 2 * view.tiles**2))
        return images

    def _render(self, images: Tensor, flip: NDArray[np.bool_], colours: Colours) -> Tensor:
        """Flip, change colours and normalise; (B, 3, s, s)."""
        s, views = self.settings, torch.empty(images.shape, device=images.device)
        # A CPU works on large images one by one, so that each stays in the cache from the first operation to the last.
        one_by_one = images.device.type == "cpu" and images.shape[-1] >= LARGE
        if one_by_one and FUSED and images.dtype == torch.uint8:
            colours.write(images, flip, s.mean, s.std, views)
            return views
        part = 1 if one_by_one else len(images)
        mean, scale = (images.new_tensor(v, dtype=torch.float)[:, None, None] for v in (s.mean, 1 / np.array(s.std)))
        for start in range(0, len(images), part):
            rows = slice(start, start + part)
            flipped = apply_where(images[rows], flip[rows], lambda crops: crops.flip(3))
            changed = colours.of(rows).apply(to_float(flipped))
            torch.sub(changed, mean, out=views[rows]).mul_(scale)
        return views


def crop_views(settings: Resolved) -> ImageViews:
    """Views of one random crop with a random flip only, to train classifiers (as in MoCo's linear evaluation)."""
    return ImageViews(settings, [ViewSpec("query", crop_scale=(0.08, 1.0), jitter_p=0.0, grey_p=0.0, blur_p=0.0)])
