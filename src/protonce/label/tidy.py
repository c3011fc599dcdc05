"""`protonce tidy`: copies, look-alikes and outliers among the images of a run, and images that another set shares."""

import dataclasses
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from protonce.data.sources import Data, Source, open_source
from protonce.errors import UserError
from protonce.evaluate.knn import neighbours
from protonce.features import extract
from protonce.files import check_new_file, csv_text, write_whole
from protonce.label.likeness import read_small
from protonce.label.lookalikes import (
    Edited,
    Pair,
    Pictures,
    Thresholds,
    choose_thresholds,
    find_pairs,
    group,
)
from protonce.progress import Steps
from protonce.run import Run
from protonce.ties import COSINE, ranks

NEIGHBOUR = 5  # an image is as far out as its fifth neighbour is away, so that a few copies of it do not hide it
HEADER = ("name", "finding", "group", "keep", "like", "correlation", "distance", "file")
FENCE = 1.5  # interquartile ranges above the third quartile (Tukey, 1977)


@dataclass(frozen=True)
class Outliers:
    """Images that are far from all others, the farthest first."""

    images: NDArray[np.int64]
    distances: NDArray[np.float64]  # cosine distance to the fifth neighbour
    threshold: float


@dataclass(frozen=True)
class Tidied:
    """What was found among n images."""

    source: Source
    thresholds: Thresholds
    pairs: list[Pair]
    groups: list[list[int]]  # of the pairs; of each group the first image is the one to keep
    outliers: Outliers
    against: Source | None = None
    leaks: list[Pair] = field(default_factory=list)  # of an image of the run and one of `against`

    def copies_of(self, kept: Collection[int] = ()) -> list[int]:
        """The images of each group but one: one of `kept` if there are some in the group, else the first."""
        found = []
        for images in self.groups:
            own = [i for i in images if i in kept] or images[:1]
            found += [i for i in images if i not in own]
        return found


def tidy(
    run: Run,
    *,
    against: Data | None = None,
    threshold: float | None = None,
    data: Data | None = None,
    quiet: bool = False,
) -> Tidied:
    """Find look-alikes and outliers among the images of a run.

    Args:
        run: with an encoder.
        against: other images; those that look like one of the run are leaks. Of a named data set the test part.
        threshold: the smallest correlation of look-alikes; None: chosen from edited copies of some images.
        data: the images of the run, if they have moved.
        quiet: print nothing.

    Raises:
        UserError: an argument is invalid, or the items are not images.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise UserError(f"--threshold is {threshold}; it must be above 0 and at most 1")
    source = run.source(data)
    other = None if against is None else open_source(against, "test", run.settings.seed)
    for images in (source, other):
        if images is not None and images.sizes is None:
            raise UserError(f"{images.spec} does not consist of images, so that look-alikes cannot be found")
    steps = Steps(quiet)
    pictures = _pictures(run, source, steps)
    found = look_through(run, source, pictures, steps, threshold)
    if other is None:
        return found
    leaks = find_pairs(pictures, found.thresholds, _pictures(run, other, steps))
    return dataclasses.replace(found, against=other, leaks=leaks)


def _pictures(run: Run, source: Source, steps: Steps) -> Pictures:
    (features,) = run.features(source, "momentum", steps=steps)
    return read_pictures(source, features, steps)


def read_pictures(source: Source, features: Tensor, steps: Steps) -> Pictures:
    """Images as they are compared, by the features v' of the momentum encoder, (n, d)."""
    with steps.doing(f"small versions of {len(source):,} images", len(source)) as seen:
        return Pictures.of(read_small(source, seen), features)


def look_through(run: Run, source: Source, pictures: Pictures, steps: Steps, threshold: float | None = None) -> Tidied:
    """Look-alikes and outliers among the images of a run; for arguments see `tidy`."""
    thresholds = find_thresholds(run, source, pictures, steps, threshold)
    with steps.doing("look-alikes and outliers"):
        pairs = find_pairs(pictures, thresholds)
        groups = [keep_first(images, source, pictures.small.length) for images in group(len(source), pairs)]
        return Tidied(source, thresholds, pairs, groups, find_outliers(pictures.features))


def find_thresholds(
    run: Run, source: Source, pictures: Pictures, steps: Steps, correlation: float | None = None
) -> Thresholds:
    """Thresholds of look-alikes by edited copies of some of the images.

    Args:
        run: whose momentum encoder looks at the copies.
        source: its images.
        pictures: what is compared of them.
        steps: reports progress.
        correlation: None: chosen too.
    """
    with steps.doing("threshold of look-alikes"):
        edited = Edited(source, run.settings.seed)
        encoder = run.encoders[1].to(run.device).eval()
        features = F.normalize(extract(encoder, run.loader(edited)), dim=1)
        return choose_thresholds(pictures, edited, features, correlation)


def find_outliers(features: Tensor) -> Outliers:
    """Images whose fifth neighbour is farther away than is usual: above the upper fence of a box plot.

    Args:
        features: unit vectors, (n, d).
    """
    k = min(NEIGHBOUR, len(features) - 1)
    if k < 1:
        return Outliers(np.empty(0, dtype=np.int64), np.empty(0), float("inf"))
    similarity, _ = neighbours(features, features, k, left_out=torch.arange(len(features)))
    distance = 1 - similarity[:, -1].double().numpy()
    first, third = np.quantile(distance, [0.25, 0.75])
    threshold = float(third + FENCE * (third - first))
    order = np.argsort(ranks(-distance, COSINE), kind="stable")
    beyond = order[distance[order] > threshold + COSINE]
    return Outliers(beyond, distance[beyond], threshold)


def write_tidy(
    run: Run,
    out: Path,
    *,
    against: Data | None = None,
    threshold: float | None = None,
    data: Data | None = None,
    quiet: bool = False,
) -> Tidied:
    """Write a table with a line for each image of a group, each outlier and each leak; for arguments see `tidy`.

    Raises:
        UserError: an argument is invalid. Nothing has been written.
    """
    check_new_file(out)
    found = tidy(run, against=against, threshold=threshold, data=data, quiet=quiet)
    write_whole(out, csv_text(HEADER, [*_group_rows(found), *_outlier_rows(found), *_leak_rows(found)]))
    return found


def _group_rows(found: Tidied) -> list[tuple[object, ...]]:
    """Lines of the groups: the image to keep, then each other one with the image it is most like."""
    like: dict[int, dict[int, Pair]] = {}
    for pair in found.pairs:
        like.setdefault(pair.first, {})[pair.second] = pair
        like.setdefault(pair.second, {})[pair.first] = pair
    rows: list[tuple[object, ...]] = []
    for number, images in enumerate(found.groups, start=1):
        kept = images[0]
        rows.append((found.source.names[kept], "original", number, "yes", "", "", "", _file(found.source, kept)))
        for image in images[1:]:
            other = kept if kept in like[image] else max(like[image], key=lambda j: like[image][j].correlation)
            pair = like[image][other]
            numbers = (f"{pair.correlation:.3f}", f"{pair.distance:.4f}")
            names = found.source.names[image], found.source.names[other]
            rows.append((names[0], pair.kind, number, "no", names[1], *numbers, _file(found.source, image)))
    return rows


def keep_first(images: list[int], source: Source, length: Sequence[int]) -> list[int]:
    """A group with the image to keep first: the one with the most pixels, of several the largest file."""
    assert source.sizes is not None
    pixels = source.sizes.prod(axis=1)
    return sorted(images, key=lambda i: (-int(pixels[i]), -length[i], i))


def _outlier_rows(found: Tidied) -> list[tuple[object, ...]]:
    source, outliers = found.source, found.outliers
    return [
        (source.names[i], "outlier", "", "", "", "", f"{distance:.4f}", _file(source, i))
        for i, distance in zip(outliers.images.tolist(), outliers.distances.tolist(), strict=True)
    ]


def _leak_rows(found: Tidied) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for pair in found.leaks:
        assert found.against is not None
        name, other = found.source.names[pair.first], found.against.names[pair.second]
        numbers = (f"{pair.correlation:.3f}", f"{pair.distance:.4f}")
        rows.append((name, f"leak: {pair.kind}", "", "", other, *numbers, _file(found.source, pair.first)))
    return rows


def _file(source: Source, i: int) -> str:
    return "" if source.files is None else os.fspath(source.files[i])
