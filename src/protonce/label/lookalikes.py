"""Find images that show the same picture: exact copies, edited copies and mirrored ones, in groups."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from protonce import randomness
from protonce.data.pictures import Pixels
from protonce.data.sources import Source, random_order
from protonce.label.likeness import Small, coarse, coarse_correlation, likeness, perceptual_hash, thumbnail
from protonce.label.nearest import nearest
from protonce.ties import COSINE

Kind = Literal["exact copy", "look-alike", "mirrored"]
EDITS = ("smaller", "brighter", "cropped")
NEAREST = 10  # neighbours of an image that are compared with it, by features; as many by hash
SAMPLE = 100  # images whose edited copies tell how alike copies are
MISSED = 0.02  # share of edited copies that each threshold may miss,
UNSEEN = 0.005  # and that may not even be looked at closely
OTHERS = range(6, 11)  # neighbours of an image that are hardly copies of it
WRONG = 0.01  # share of them that may be taken for copies
BLOCK = 1 << 16  # pairs compared at once
BITS = 10  # of 64 that differ in the hashes of similar images; of random bits that few differ once in 10^8 pairs


class Edited:
    """Copies of some images as people make them: smaller and recompressed, brighter, and cropped by a tenth.

    A data set, so that an encoder can look at it. Copy c of image i of the sample is item 3 i + c.
    """

    def __init__(self, source: Source, seed: int) -> None:
        self.source = source
        self.images = np.sort(random_order(len(source), "look-alikes", seed)[:SAMPLE])
        rng = randomness.generator(seed, "look-alikes")
        self.corners = torch.rand(len(self.images), 2, generator=rng).tolist()
        self.names = [f"{number} edited" for number in range(len(self))]

    def __len__(self) -> int:
        return len(EDITS) * len(self.images)

    @property
    def originals(self) -> Tensor:
        """The image that each item is a copy of, (3 s,)."""
        return torch.from_numpy(self.images).repeat_interleave(len(EDITS))

    def load(self, i: int) -> Pixels:
        """The pixels of a copy."""
        which, edit = i // len(EDITS), EDITS[i % len(EDITS)]
        image = Image.fromarray(self.source.load(int(self.images[which])))
        if edit == "smaller":
            small = image.resize((max(round(0.6 * image.width), 1), max(round(0.6 * image.height), 1)))
            buffer = io.BytesIO()
            small.save(buffer, "JPEG", quality=50)
            image = Image.open(buffer).convert("RGB")
        elif edit == "brighter":
            image = ImageEnhance.Brightness(image).enhance(1.3)
        else:
            width, height = (max(round(0.9 * side), 1) for side in image.size)
            across, down = self.corners[which]
            x, y = round(across * (image.width - width)), round(down * (image.height - height))
            image = image.crop((x, y, x + width, y + height))
        return np.array(image)

    def thumbs(self) -> Tensor:
        """Thumbnails of all copies, (3 s, SIDE, SIDE)."""
        return torch.stack([thumbnail(Image.fromarray(self.load(i))) for i in range(len(self))])


@dataclass(frozen=True)
class Pictures:
    """Images as they are compared."""

    small: Small
    features: Tensor  # unit vectors, (n, d)
    hashes: Tensor  # (n, bits) of 1 and -1
    coarse: Tensor  # (n, 8, 8) grids

    @classmethod
    def of(cls, small: Small, features: Tensor) -> "Pictures":
        """From what was read and computed of them."""
        return cls(small, features, perceptual_hash(small.thumbs), coarse(small.thumbs))


@dataclass(frozen=True)
class Thresholds:
    """What two images must have in common to be called look-alikes.

    Attributes:
        correlation: the smallest correlation of their thumbnails.
        distance: the largest cosine distance of their features; or at most BITS bits of their hashes differ.
        coarse: the smallest correlation of their coarse grids, as few pairs are worth a closer look.
        copies: share of the edited copies of a sample of images that are found by these thresholds.
        others: share of the sixth to tenth neighbours of the sample that pass.
    """

    correlation: float
    distance: float
    coarse: float
    copies: float
    others: float


@dataclass(frozen=True)
class Pair:
    """Two images that look alike."""

    first: int
    second: int
    kind: Kind
    correlation: float
    distance: float  # cosine distance of the features


def choose_thresholds(pictures: Pictures, edited: Edited, features: Tensor, least: float | None = None) -> Thresholds:
    """Thresholds between what an image has in common with its edited copies and with its neighbours.

    All but 2 % of the copies pass each threshold, and all but 0.5 % that of the coarse grids, unless more than 1 % of
    the sixth to tenth neighbours passed too: the correlation must then be higher. Few images have six copies, so that
    these are others of its kind.

    Args:
        pictures: all images.
        edited: copies of some.
        features: of the copies, unit vectors, (3 s, d).
        least: the smallest correlation, if it is given.
    """
    own, thumbs = edited.originals, edited.thumbs()
    copies = Pictures.of(Small(thumbs, [], []), features)
    correlation, _ = likeness(pictures.small.thumbs, thumbs, own, torch.arange(len(own)))
    most = float((1 - (pictures.features[own] * features).sum(dim=1)).quantile(1 - MISSED))
    alike = float(coarse_correlation(pictures.coarse[own], copies.coarse).quantile(UNSEEN))
    images = own[:: len(EDITS)]
    similar = _neighbours_alike(pictures, images, most, alike)
    if least is None:
        least = max(float(correlation.quantile(MISSED)), float(similar.quantile(1 - WRONG)) if len(similar) else 0.0)
    near = _near(pictures, copies, own, torch.arange(len(own)), most, alike)
    found = float((near & (correlation >= least)).double().mean())
    return Thresholds(least, most, alike, found, float((similar > least).double().mean()) if len(similar) else 0.0)


def _neighbours_alike(pictures: Pictures, images: Tensor, distance: float, alike: float) -> Tensor:
    """Correlation of images (s,) with their sixth to tenth neighbours, 0 where these are not near."""
    if len(pictures.features) <= max(OTHERS):
        return torch.empty(0)
    _, near = nearest(pictures.features, pictures.features[images], max(OTHERS), left_out=images)
    j = near[:, min(OTHERS) - 1 :]
    i = images[:, None].expand_as(j).flatten()
    j = j.flatten()
    similar = _near(pictures, pictures, i, j, distance, alike)
    found = torch.zeros(len(i))
    found[similar] = likeness(pictures.small.thumbs, pictures.small.thumbs, i[similar], j[similar]).correlation
    return found


def find_pairs(pictures: Pictures, thresholds: Thresholds, others: Pictures | None = None) -> list[Pair]:
    """Pairs of images that look alike; each copy of a file is paired with the first of them only.

    Args:
        pictures: images.
        thresholds: of look-alikes.
        others: other images; `first` is then one of `pictures` and `second` one of these. None: the same images.
    """
    first = {digest: i for i, digest in reversed(list(enumerate(pictures.small.content)))}
    content = pictures.small.content if others is None else others.small.content
    found = [
        Pair(first[digest], j, "exact copy", 1.0, 0.0)
        for j, digest in enumerate(content)
        if digest in first and (others is not None or first[digest] != j)
    ]
    left = torch.tensor(sorted(first.values()))  # of several copies only one is compared
    right = torch.tensor([j for j, digest in enumerate(content) if digest not in first], dtype=torch.long)
    if others is None:
        return found + _alike(pictures, pictures, *_candidates(pictures, pictures, left, left), thresholds)
    return found + _alike(pictures, others, *_candidates(pictures, others, left, right), thresholds)


def _candidates(a: Pictures, b: Pictures, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Each image of `right` with its nearest of `left`, by features and by hash, each pair once; (p,) each."""
    same = a is b
    k = min(NEAREST, len(left) - same)
    if k < 1 or not len(right):
        return left[:0], left[:0]
    pairs = []
    for known, asked in ((a.features[left], b.features[right]), (a.hashes[left], b.hashes[right])):
        _, near = nearest(known, asked, k, left_out=torch.arange(len(left)) if same else None)  # (q, k)
        pairs.append(torch.stack([left[near].flatten(), right.repeat_interleave(k)], dim=1))
    found = torch.cat(pairs)
    if same:
        found = found.sort(dim=1).values
    found = found.unique(dim=0)
    return found[:, 0], found[:, 1]


def _near(a: Pictures, b: Pictures, i: Tensor, j: Tensor, distance: float, alike: float) -> Tensor:
    """Which pairs of image i of `a` and image j of `b` have similar features or hashes, and coarse grids; (p,)."""
    found = [torch.empty(0, dtype=torch.bool)]
    for left, right in zip(i.split(BLOCK), j.split(BLOCK), strict=True):
        similarity = (a.features[left] * b.features[right]).sum(dim=1)
        different = (a.hashes.shape[1] - (a.hashes[left] * b.hashes[right]).sum(dim=1)) / 2
        near = (1 - similarity <= distance + COSINE) | (different <= BITS)
        found.append(near & (coarse_correlation(a.coarse[left], b.coarse[right]) >= alike - COSINE))
    return torch.cat(found)


def _alike(a: Pictures, b: Pictures, i: Tensor, j: Tensor, thresholds: Thresholds) -> list[Pair]:
    """The pairs of image i of `a` and image j of `b` that look alike."""
    near = _near(a, b, i, j, thresholds.distance, thresholds.coarse)
    i, j = i[near], j[near]
    correlation, mirrored = likeness(a.small.thumbs, b.small.thumbs, i, j)
    distance = 1 - (a.features[i] * b.features[j]).sum(dim=1)
    rows = zip(i.tolist(), j.tolist(), mirrored.tolist(), correlation.tolist(), distance.tolist(), strict=True)
    return [
        Pair(first, second, "mirrored" if turned else "look-alike", r, max(d, 0.0))
        for first, second, turned, r, d in rows
        if r >= thresholds.correlation
    ]


def group(n: int, pairs: Sequence[Pair]) -> list[list[int]]:
    """The groups of images that pairs connect, the largest first, each in the order of the indices."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.array([[pair.first, pair.second] for pair in pairs], dtype=np.int64).reshape(-1, 2)
    _, label = connected_components(coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(n, n)))
    members: dict[int, list[int]] = {}
    for image in np.unique(ends).tolist():
        members.setdefault(int(label[image]), []).append(image)
    return sorted(members.values(), key=lambda images: (-len(images), images[0]))
