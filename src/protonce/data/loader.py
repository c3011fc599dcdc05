"""Batches of samples, by index: small images from a memory map, everything else through worker processes."""

import ctypes
import dataclasses
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from protonce.data.crops import Squares
from protonce.data.sources import Source
from protonce.data.views import Item, Samples, Views
from protonce.errors import UserError

SMALL_SIDE = 128  # pixels: images up to this size are decoded once and kept
TRIES = 100  # images in a row that may be unreadable before training stops
Failure = tuple[int, str]  # which image cannot be read any more, and why


class Loader:
    """Batches of one source for one kind of views, on one device.

    A file may be gone, or broken, that could be read when the source was opened. With `replaced` another image takes
    its place, and `replaced` is told its name and the reason, once; without it that is an error.
    """

    def __init__(
        self,
        source: Source,
        views: Views,
        *,
        seed: int = 0,
        workers: int = 0,
        device: torch.device | str = "cpu",
        replaced: Callable[[str, str], None] | None = None,
    ) -> None:
        self.source, self.views = source, views
        self.seed, self.workers, self.device = seed, workers, torch.device(device)
        self.replaced = replaced
        self.lost: dict[int, str] = {}  # images that were replaced, and why
        small = source.sizes is not None and source.sizes.max() <= SMALL_SIDE
        self.square: SquareMap | None = None
        if small and getattr(views, "takes_squares", False):
            self.square = SquareMap(source)
            self._report(self.square.failures)

    def __len__(self) -> int:
        return len(self.source)

    def train(self, order: Tensor, epoch: int, batch_size: int, every: bool = False) -> Iterator[Samples]:
        """Samples for random views, in this order of image indices.

        Args:
            order: image indices.
            epoch: of which the crops are a function.
            batch_size: of all batches; an incomplete last one is left out.
            every: leave none out: batches of at most that size, and as equal as can be; of three images where
                one would be by itself, of which batch norm cannot learn.
        """
        if every:
            batches = order.tensor_split(max(min(-(-len(order) // batch_size), len(order) // 2), 1))
        else:
            batches = order[: len(order) // batch_size * batch_size].split(batch_size)
        yield from self._batches(batches, epoch, plain=False)

    def plain(self, batch_size: int, index: Tensor | None = None) -> Iterator[Samples]:
        """Samples for plain views of these images, in this order; None: of all images, once each."""
        order = torch.arange(len(self)) if index is None else index
        yield from self._batches(order.split(batch_size), 0, plain=True)

    def _batches(self, batches: Sequence[Tensor], epoch: int, plain: bool) -> Iterator[Samples]:
        batches = [index for index in batches if len(index)]
        if self.square is not None:
            for index in batches:
                squares, shown = self.square.take(index)
                squares = squares._replace(pixels=squares.pixels.to(self.device))
                yield Samples(squares, index if plain else shown, self.seed, epoch)
            return
        source = dataclasses.replace(self.source, subset_of=None)  # all that workers need
        dataset = _Prepared(source, self.views, self.seed, epoch, plain)
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=[index.tolist() for index in batches],
            num_workers=0 if self.source.in_memory else min(self.workers, len(batches)),
            collate_fn=_collate,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_Begin(),
            generator=torch.Generator(),  # nothing is drawn by the workers, nor from the caller's generator
        )
        for index, (found, data, failures) in zip(batches, loader, strict=True):
            self._report(failures)
            if data is None:
                raise unreadable(self.source, failures)
            # A random view belongs to the image it shows; a feature to the image that was asked for.
            yield Samples(_to(data, self.device), index if plain else found, self.seed, epoch)

    def _report(self, failures: Sequence[Failure]) -> None:
        """Say of each image that cannot be read any more that another takes its place.

        Raises:
            UserError: none may.
        """
        for i, reason in failures:
            name = self.source.names[i]
            if self.replaced is None:
                raise UserError(f"{name} of {self.source.spec} cannot be read any more: {reason}")
            if i not in self.lost:
                self.lost[i] = reason
                self.replaced(name, reason)


class SquareMap:
    """All images, decoded once and squeezed into squares of one size, in a memory map that ends with the process."""

    def __init__(self, source: Source) -> None:
        assert source.sizes is not None
        self.side = int(source.sizes.max())
        self.sizes = np.empty((len(source), 2), dtype=np.int64)
        self.shown = np.arange(len(source))  # the image in each place, where one cannot be read another
        self.failures: list[Failure] = []
        shape = (len(source), 3, self.side, self.side)
        self.pixels: NDArray[np.uint8] = np.memmap(
            tempfile.TemporaryFile(),  # noqa: SIM115 - it lives as long as the map
            dtype=np.uint8,
            mode="w+",
            shape=shape,
        )

        for i in range(len(source)):  # no threads: for images so small they would wait for each other
            if source.encoded is None:
                image = source.load(i)
            else:
                self.shown[i], image, failures = readable(len(source), i, source.load)
                if image is None:
                    raise unreadable(source, failures)
                self.failures += failures
            self.sizes[i] = image.shape[:2]
            if image.shape[:2] != (self.side, self.side):
                image = Image.fromarray(image).resize((self.side, self.side), Image.Resampling.BILINEAR)
            self.pixels[i] = np.asarray(image).transpose(2, 0, 1)

    def take(self, index: Tensor) -> tuple[Squares, Tensor]:
        """The images at these positions, and which images they are, (B,)."""
        rows = index.numpy()
        pixels, sizes, shown = (torch.from_numpy(values[rows]) for values in (self.pixels, self.sizes, self.shown))
        return Squares(pixels, sizes), shown


def unreadable(source: Source, failures: Sequence[Failure]) -> UserError:
    """For so many files in a row it is not the files that are to blame."""
    (last, reason), before = failures[-1], len(failures) - 1
    name = source.names[last]
    return UserError(f"{name} of {source.spec} cannot be read any more, nor the {before} before it: {reason}")


@dataclass
class _Begin:
    """How a worker begins, so that it ends when it should."""

    parent: int = field(default_factory=os.getpid)
    forked: bool = field(default_factory=lambda: _start_method() == "fork")

    def __call__(self, _: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to workers too: their parent ends them
        if self.forked:
            # torch's workers miss the death of a parent that is killed while they start: the system shall end them.
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != self.parent:
                os._exit(1)


def _start_method() -> str:
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def readable(n: int, i: int, read: Callable[[int], Any]) -> tuple[int, Any, list[Failure]]:
    """Item i of n, or the next one that can be read; which it is, and those that cannot be.

    Failures are handed over as values: an error that leaves a worker loses its sentence.
    """
    failures: list[Failure] = []
    for j in ((i + step) % n for step in range(min(TRIES, n))):
        try:
            return j, read(j), failures
        except Exception as error:  # Pillow's plug-ins raise many kinds
            failures.append((j, " ".join(str(error).split()) or type(error).__name__))
    return i, None, failures


def _collate(items: list[tuple[int, Any, list[Failure]]]) -> tuple[Tensor, Any, list[Failure]]:
    index, data, failures = zip(*items, strict=True)
    for item, found in zip(data, failures, strict=True):
        if item is None:
            return torch.tensor(index), None, found
    return torch.tensor(index), default_collate(list(data)), [failure for found in failures for failure in found]


@dataclass
class _Prepared(Dataset[Any]):
    """What a worker does to one item: load it, or what the views make of it in their `prepare`."""

    source: Source
    views: Views
    seed: int
    epoch: int
    plain: bool

    def __getitem__(self, i: int) -> tuple[int, Any, list[Failure]]:
        if self.source.encoded is None:  # the user's own data set: an error is its author's to see
            return i, self._prepare(i), []
        return readable(len(self.source), i, self._prepare)

    def _prepare(self, i: int) -> Any:
        prepare = getattr(self.views, "prepare", None)
        if prepare is None:
            return self.source.load(i)
        encoded = None if self.source.encoded is None else functools.partial(self.source.encoded, i)
        return prepare(Item(i, self.seed, self.epoch, self.plain, functools.partial(self.source.load, i), encoded))


def _to(data: Any, device: torch.device) -> Any:
    """Every tensor of a collated batch on the device."""
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=device.type == "cuda")  # elsewhere the source may be gone too early
    if isinstance(data, dict):
        return {name: _to(value, device) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_to(value, device) for value in data]
    return data
