"""What is odd among the images of a run: look-alikes and outliers. Kept in RUN/features, as both take a while."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from protonce.data.sources import Source
from protonce.features import extract
from protonce.files import write_whole
from protonce.label.likeness import read_small
from protonce.label.lookalikes import Edited, Pair, Pictures, Thresholds, choose_thresholds, find_pairs, group
from protonce.label.nearest import nearest
from protonce.progress import Steps
from protonce.run import Run
from protonce.ties import COSINE, ranks

NEIGHBOUR = 5  # an image is as far out as its fifth neighbour is away, so that a few copies of it do not hide it
FENCE = 1.5  # interquartile ranges above the third quartile (Tukey, 1977)
COMPARED = 100_000  # images up to which `suggest` and the page look for look-alikes: all have to be read
VERSION = 2  # of what is kept; to be raised when something else is found


@dataclass(frozen=True)
class Outliers:
    """Images that are far from all others, the farthest first."""

    images: NDArray[np.int64]
    distances: NDArray[np.float64]  # cosine distance to the fifth neighbour
    threshold: float


@dataclass(frozen=True)
class Findings:
    """What was found among the images of a run."""

    source: Source
    thresholds: Thresholds
    pairs: list[Pair]
    groups: list[list[int]]  # of the pairs; of each group the first image is the one to keep
    outliers: Outliers

    def copies(self, kept: Collection[int] = ()) -> list[int]:
        """The images of each group but those in `kept`, or but the first if none is."""
        found = []
        for images in self.groups:
            own = [i for i in images if i in kept] or images[:1]
            found += [i for i in images if i not in own]
        return found


def look_through(run: Run, source: Source, features: Tensor, steps: Steps) -> Findings:
    """Look-alikes and outliers among the images of a run, as they were kept or found anew.

    Args:
        run: with an encoder.
        source: its images; they are images, not vectors.
        features: v' of each by the momentum encoder, (n, d).
        steps: reports progress.
    """
    cached = run.feature_cache.path(source, "momentum")
    path = None if cached is None else cached.with_name(cached.name.replace("momentum.npy", "findings.json"))
    kept = None
    if path is not None and path.exists():
        try:
            kept = _from_json(path.read_text(), source)
        except (OSError, ValueError, TypeError, KeyError):  # damaged, or of another version
            kept = None
    if kept is not None:
        return kept
    found = compare(run, source, read_pictures(source, features, steps), steps)
    if path is not None:
        try:
            write_whole(path, _to_json(found))
        except OSError:  # a read-only folder, a full disk: it is only a cache
            return found
    return found


def _to_json(found: Findings) -> str:
    pairs = [list(asdict(pair).values()) for pair in found.pairs]
    outliers = found.outliers
    return json.dumps(
        {
            "version": VERSION,
            "thresholds": asdict(found.thresholds),
            "pairs": pairs,
            "groups": found.groups,
            "outliers": [outliers.images.tolist(), outliers.distances.tolist(), outliers.threshold],
        }
    )


def _from_json(text: str, source: Source) -> Findings:
    """What was kept.

    Raises:
        ValueError, TypeError, KeyError: it was not written by `_to_json` of this version.
    """
    data = json.loads(text)
    if data["version"] != VERSION:
        raise ValueError("another version")
    images, distances, threshold = data["outliers"]
    outliers = Outliers(np.array(images, dtype=np.int64), np.array(distances, dtype=np.float64), threshold)
    pairs = [Pair(*values) for values in data["pairs"]]
    return Findings(source, Thresholds(**data["thresholds"]), pairs, data["groups"], outliers)


def read_pictures(source: Source, features: Tensor, steps: Steps) -> Pictures:
    """Images as they are compared, by the features v' of the momentum encoder, (n, d)."""
    with steps.doing(f"small versions of {len(source):,} images", len(source)) as seen:
        return Pictures.of(read_small(source, seen), features)


def compare(run: Run, source: Source, pictures: Pictures, steps: Steps, correlation: float | None = None) -> Findings:
    """Look-alikes and outliers among images; for arguments see `find_thresholds`."""
    thresholds = find_thresholds(run, source, pictures, steps, correlation)
    with steps.doing("look-alikes and outliers"):
        pairs = find_pairs(pictures, thresholds)
        groups = [keep_first(images, source, pictures.small.length) for images in group(len(source), pairs)]
        return Findings(source, thresholds, pairs, groups, find_outliers(pictures.features))


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


def keep_first(images: list[int], source: Source, length: Sequence[int]) -> list[int]:
    """A group with the image to keep first: the one with the most pixels, of several the largest file."""
    assert source.sizes is not None
    pixels = source.sizes.prod(axis=1)
    return sorted(images, key=lambda i: (-int(pixels[i]), -length[i], i))


def find_outliers(features: Tensor) -> Outliers:
    """Images whose fifth neighbour is farther away than is usual: above the upper fence of a box plot.

    Args:
        features: unit vectors, (n, d).
    """
    k = min(NEIGHBOUR, len(features) - 1)
    if k < 1:
        return Outliers(np.empty(0, dtype=np.int64), np.empty(0), float("inf"))
    similarity, _ = nearest(features, features, k, left_out=torch.arange(len(features)))
    distance = 1 - similarity[:, -1].double().numpy()
    first, third = np.quantile(distance, [0.25, 0.75])
    threshold = float(third + FENCE * (third - first))
    order = np.argsort(ranks(-distance, COSINE), kind="stable")
    beyond = order[distance[order] > threshold + COSINE]
    return Outliers(beyond, distance[beyond], threshold)
