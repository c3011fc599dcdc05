"""Load batches by index: small images from a memory map, other items through worker processes."""

import ctypes
import dataclasses
import functools
import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from protonce.data import scratch
from protonce.data.crops import Squares
from protonce.data.sources import Source
from protonce.data.views import Item, Samples, Views
from protonce.errors import UserError

SMALL_SIDE = 128  # pixels: images up to this size are decoded only once
TRIES = 100  # consecutive unreadable images before training stops
Batch = tuple[tuple[Tensor, ...], Tensor]  # views, and the images they show
Failure = tuple[int, str]  # index of an image that can no longer be read, and the reason


class Loader:
    """Batches of one source for one kind of views, on one device.

    Files may disappear or become unreadable after the source was opened. If `replaced` is given, such an image is
    replaced by another, and `replaced` is called once with its name and the reason; otherwise an error is raised.
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
        self.lost: dict[int, str] = {}  # images that were replaced, and the reasons
        small = source.sizes is not None and source.sizes.max() <= SMALL_SIDE
        self.square: SquareMap | None = None
        if small and getattr(views, "takes_squares", False):
            self.square = SquareMap(source)
            self._report(self.square.failures)

    def __len__(self) -> int:
        return len(self.source)

    def train(self, order: Tensor, epoch: int, batch_size: int, every: bool = False) -> Iterator[Batch]:
        """Random views (B, ...) of each batch, and which images they show, (B,); arguments as for `samples`."""
        for samples in self.samples(order, epoch, batch_size, every):
            yield self.views.train(samples), samples.index

    def samples(self, order: Tensor, epoch: int, batch_size: int, every: bool = False) -> Iterator[Samples]:
        """Samples from which random views are computed.

        Args:
            order: image indices, in the order in which they are loaded.
            epoch: on which the random crops depend.
            batch_size: size of every batch; an incomplete last batch is dropped.
            every: drop nothing: use batches of nearly equal size, at most `batch_size`. There may be a batch of three
                instead of a batch of one, on which batch norm cannot train.
        """
        if every:
            batches = order.tensor_split(max(min(-(-len(order) // batch_size), len(order) // 2), 1))
        else:
            batches = order[: len(order) // batch_size * batch_size].split(batch_size)
        yield from self._batches(batches, epoch, plain=False)

    def plain(self, batch_size: int, index: Tensor | None = None) -> Iterator[Samples]:
        """Samples for plain views of the images `index`, in this order; None: all images."""
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
        source = dataclasses.replace(self.source, subset_of=None)  # workers do not need the parent source
        dataset = _Prepared(source, self.views, self.seed, epoch, plain)
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=[index.tolist() for index in batches],
            num_workers=0 if self.source.in_memory else min(self.workers, len(batches)),
            collate_fn=_collate,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_InitWorker(),
            generator=torch.Generator(),  # so that the global generator is not advanced
        )
        for index, (found, data, failures) in zip(batches, loader, strict=True):
            self._report(failures)
            if data is None:
                raise unreadable(self.source, failures)
            # A random view belongs to the image it shows, a feature to the image that was requested.
            yield Samples(_to(data, self.device), index if plain else found, self.seed, epoch)

    def _report(self, failures: Sequence[Failure]) -> None:
        """Report each image that can no longer be read and was replaced.

        Raises:
            UserError: images must not be replaced.
        """
        for i, reason in failures:
            name = self.source.names[i]
            if self.replaced is None:
                raise UserError(f"{name} of {self.source.spec} can no longer be read: {reason}")
            if i not in self.lost:
                self.lost[i] = reason
                self.replaced(name, reason)


class SquareMap:
    """All images, decoded once and resized to squares of one size, in a temporary memory map."""

    def __init__(self, source: Source) -> None:
        assert source.sizes is not None
        self.side = int(source.sizes.max())
        self.sizes = np.empty((len(source), 2), dtype=np.int64)
        self.shown = np.arange(len(source))  # index of the image at each position; another one if it was replaced
        self.failures: list[Failure] = []
        shape = (len(source), 3, self.side, self.side)
        file = scratch.create("keep the decoded images", size=math.prod(shape))
        self.pixels: NDArray[np.uint8] = np.memmap(file, dtype=np.uint8, mode="r+", shape=shape)

        for i in range(len(source)):  # no threads: for small images they would wait for each other
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
        """The images at these positions, and their image indices, (B,)."""
        rows = index.numpy()
        pixels, sizes, shown = (torch.from_numpy(values[rows]) for values in (self.pixels, self.sizes, self.shown))
        return Squares(pixels, sizes), shown


def unreadable(source: Source, failures: Sequence[Failure]) -> UserError:
    """Error for many consecutive unreadable files, of which the disk is a more likely cause than the files."""
    (last, reason), before = failures[-1], len(failures) - 1
    name = source.names[last]
    return UserError(f"{name} of {source.spec} and the {before} files before it can no longer be read: {reason}")


@dataclass
class _InitWorker:
    """Initialise a worker so that it ends with its parent."""

    parent: int = field(default_factory=os.getpid)
    forked: bool = field(default_factory=lambda: _start_method() == "fork")

    def __call__(self, _: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to workers too; the parent stops them
        if self.forked:
            # torch's workers do not notice if their parent is killed while they start: let the kernel kill them.
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != self.parent:
                os._exit(1)


def _start_method() -> str:
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def readable(n: int, i: int, read: Callable[[int], Any]) -> tuple[int, Any, list[Failure]]:
    """Index and content of item i of n, or of the next readable item, and the failures before it.

    Failures are returned as values, because an exception raised in a worker loses its message.
    """
    failures: list[Failure] = []
    for j in ((i + step) % n for step in range(min(TRIES, n))):
        try:
            return j, read(j), failures
        except Exception as error:  # Pillow's plug-ins raise many kinds of errors
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
    """Data set of the workers: loads items, and applies the `prepare` of the views if there is one."""

    source: Source
    views: Views
    seed: int
    epoch: int
    plain: bool

    def __getitem__(self, i: int) -> tuple[int, Any, list[Failure]]:
        if self.source.encoded is None:  # a user-defined data set: do not hide its errors
            return i, self._prepare(i), []
        return readable(len(self.source), i, self._prepare)

    def _prepare(self, i: int) -> Any:
        prepare = getattr(self.views, "prepare", None)
        if prepare is None:
            return _writable(self.source.load(i))
        encoded = None if self.source.encoded is None else functools.partial(self.source.encoded, i)
        return prepare(Item(i, self.seed, self.epoch, self.plain, functools.partial(self.source.load, i), encoded))


def _writable(item: Any) -> Any:
    """An item whose arrays can become tensors: torch warns of those that are read-only, and refuses reversed ones."""
    if isinstance(item, np.ndarray):
        return np.require(item, requirements=["C", "W"]) if item.dtype != object else item
    if isinstance(item, dict):
        return {name: _writable(value) for name, value in item.items()}
    if isinstance(item, list | tuple):
        values = [_writable(value) for value in item]
        return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
    return item


def _to(data: Any, device: torch.device) -> Any:
    """Move every tensor of a collated batch to the device."""
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=device.type == "cuda")  # elsewhere the source could be freed too early
    if isinstance(data, dict):
        return {name: _to(value, device) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_to(value, device) for value in data]
    return data
