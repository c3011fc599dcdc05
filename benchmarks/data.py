"""Data sets of the benchmarks: training and test images with labels, in the layouts people have."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonce.data.sources import Source, open_source
from protonce.data.splitting import check_apart, split
from protonce.errors import UserError

CLAIMS = Path(__file__).parent / "claims"  # grids of the studies
PARTS = (("train", "test"), ("train", "val"), ("train.zip", "test.zip"), ("train.zip", "val.zip"))


@dataclass(frozen=True)
class Arrays:
    """Images in memory with their labels: a data set of one's own, as `protonce.train` takes it."""

    images: NDArray[np.uint8]  # (n, h, w, 3)
    labels: list[str]

    def __len__(self) -> int:
        return len(self.images)

    def load(self, i: int) -> Any:
        """The pixels of an image."""
        return self.images[i]


def open_parts(data: str, seed: int) -> tuple[Source, Source]:
    """Training and test images of `builtin`, of MNIST's idx files, of a folder with both parts, or of one split here.

    Raises:
        UserError: there is no such data, or it has no labels.
    """
    folder = Path(data)
    if data == "builtin":
        parts = open_source(data, "train", seed), open_source(data, "test", seed)
    elif (folder / "train-images-idx3-ubyte.gz").exists():
        parts = open_source(_idx(folder, "train")), open_source(_idx(folder, "t10k"))
    else:
        both = [(folder / a, folder / b) for a, b in PARTS if (folder / a).exists() and (folder / b).exists()]
        parts = (open_source(both[0][0]), open_source(both[0][1])) if both else split(open_source(data), seed=0)
    if parts[0].labels is None or parts[1].labels is None:
        raise UserError(f"{data} has no labels, without which nothing can be compared; use one folder a class")
    check_apart(*parts)
    return parts


def choose(source: Source, seed: int, n: int, held_out: int) -> tuple[Source, Source]:
    """By the seed, n images to train on and as many others as asked for, of one source."""
    order = _order(source, seed)
    if n + held_out > len(source):
        raise UserError(f"{source.spec} has {len(source)} images; {n} and {held_out} held out are more")
    return source.subset(np.sort(order[:n])), source.subset(np.sort(order[n : n + held_out]))


def unread_parts(
    source: Source, read: Sequence[tuple[int, int]], test_images: int, skipped: int = 0
) -> tuple[Source, Source]:
    """Part training images by what an earlier study read of them, which are for training; the others are for testing.

    Args:
        source: the training part.
        read: for each draw of that study, its seed and how many images `choose` gave.
        test_images: how many of the images that were never read are tested on, always the same.
        skipped: how many of them another study has tested on since.
    """
    seen = np.unique(np.concatenate([_order(source, seed)[:count] for seed, count in read]))
    others = np.setdiff1d(np.arange(len(source)), seen)
    if skipped + test_images > len(others):
        raise UserError(f"{source.spec} has {len(others)} images that were not read; {skipped + test_images} are more")
    test = np.random.default_rng([len(source), 21]).permutation(others)[skipped : skipped + test_images]
    return source.subset(seen), source.subset(np.sort(test))


def _order(source: Source, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, 20]).permutation(len(source))


def _idx(folder: Path, part: str) -> Arrays:
    """The layout of MNIST: a header of big-endian numbers, then bytes."""
    pixels = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    n, height, width = np.frombuffer(pixels, ">u4", count=3, offset=4)
    grey = np.frombuffer(pixels, np.uint8, offset=16).reshape(n, height, width, 1)
    return Arrays(np.repeat(grey, 3, axis=3), [str(label) for label in np.frombuffer(labels, np.uint8, offset=8)])
