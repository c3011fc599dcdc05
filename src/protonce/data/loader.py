"""Batches of samples, by index: small images from a memory map, everything else through worker processes."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from protonce.data.sources import Source
from protonce.data.views import ImageViews, Samples, Views
from protonce.errors import UserError

SMALL_SIDE = 128  # pixels: images up to this size are decoded once and kept


class Loader:
    """Batches of one source for one kind of views, on one device."""

    def __init__(
        self,
        source: Source,
        views: Views,
        *,
        seed: int = 0,
        workers: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.source, self.views = source, views
        self.seed, self.workers, self.device = seed, workers, torch.device(device)
        small = source.sizes is not None and source.sizes.max() <= SMALL_SIDE
        self.square = SquareMap(source) if small and isinstance(views, ImageViews) else None

    def __len__(self) -> int:
        return len(self.source)

    def train(self, order: Tensor, epoch: int, batch_size: int) -> Iterator[Samples]:
        """Samples for random views, in this order of image indices; an incomplete last batch is left out."""
        whole = len(order) // batch_size * batch_size
        yield from self._batches(order[:whole], epoch, batch_size, plain=False)

    def plain(self, batch_size: int) -> Iterator[Samples]:
        """Samples for plain views of all images, once each."""
        yield from self._batches(torch.arange(len(self)), 0, batch_size, plain=True)

    def _batches(self, order: Tensor, epoch: int, batch_size: int, plain: bool) -> Iterator[Samples]:
        batches = order.split(batch_size)
        if self.square is not None:
            for index in batches:
                pixels, sizes = self.square.take(index)
                yield Samples((pixels.to(self.device), sizes), index, self.seed, epoch)
            return
        dataset = _Prepared(self.source.load, self.views, self.seed, epoch, plain, self.source.files is not None)
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=[index.tolist() for index in batches],
            num_workers=0 if self.source.in_memory else min(self.workers, len(batches)),
            collate_fn=_collate,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # nothing is drawn by the workers, nor from the caller's generator
        )
        for index, data in zip(batches, loader, strict=True):
            if isinstance(data, _Unreadable):
                name = self.source.names[data.index]
                raise UserError(f"{name} of {self.source.spec} cannot be read any more: {data.reason}")
            yield Samples(_to(data, self.device), index, self.seed, epoch)


class SquareMap:
    """All images, decoded once and squeezed into squares of one size, in a memory map that ends with the process."""

    def __init__(self, source: Source) -> None:
        assert source.sizes is not None
        self.side = int(source.sizes.max())
        self.sizes = np.empty((len(source), 2), dtype=np.int64)
        shape = (len(source), 3, self.side, self.side)
        self.pixels: NDArray[np.uint8] = np.memmap(
            tempfile.TemporaryFile(),  # noqa: SIM115 - it lives as long as the map
            dtype=np.uint8,
            mode="w+",
            shape=shape,
        )

        for i in range(len(source)):  # no threads: for images so small they would wait for each other
            image = source.load(i)
            self.sizes[i] = image.shape[:2]
            if image.shape[:2] != (self.side, self.side):
                image = Image.fromarray(image).resize((self.side, self.side), Image.Resampling.BILINEAR)
            self.pixels[i] = np.asarray(image).transpose(2, 0, 1)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels (B, 3, side, side) and the height and width each image had, (B, 2)."""
        rows = index.numpy()
        return torch.from_numpy(self.pixels[rows]), torch.from_numpy(self.sizes[rows])


@dataclass
class _Unreadable:
    """A file that could be read when training began. Workers hand it over as a value: errors lose their sentence."""

    index: int
    reason: str


def _collate(items: list[Any]) -> Any:
    return next((item for item in items if isinstance(item, _Unreadable)), None) or default_collate(items)


@dataclass
class _Prepared(Dataset[Any]):
    """What a worker does to one item: nothing, or for images the crops."""

    load: Callable[[int], Any]
    views: Views
    seed: int
    epoch: int
    plain: bool
    files: bool

    def __getitem__(self, i: int) -> Any:
        try:
            item = self.load(i)
        except Exception as error:  # Pillow's plug-ins raise many kinds
            if not self.files:
                raise  # the user's own data set: its author wants to see where
            return _Unreadable(i, " ".join(str(error).split()) or type(error).__name__)
        if not isinstance(self.views, ImageViews):
            return item
        return self.views.crop_plain(item) if self.plain else self.views.crop_pair(item, i, self.seed, self.epoch)


def _to(data: Any, device: torch.device) -> Any:
    """Every tensor of a collated batch on the device."""
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=device.type == "cuda")  # elsewhere the source may be gone too early
    if isinstance(data, dict):
        return {name: _to(value, device) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_to(value, device) for value in data]
    return data
