"""Thumbnails packed into sheets, so that a page can contain thousands of them in a few megabytes."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from protonce.data.sources import Source, random_order
from protonce.report.hierarchy import Ints, Level

MAX_THUMBNAILS = 15_000  # on a page
SIDES = (160, 128, 96, 64, 48, 32, 16)  # pixels
COLUMNS, ROWS = 32, 16  # of thumbnails on a sheet
QUALITY = 70
SMALL = 0.2  # bytes per pixel of simple images; larger sides are not tried


@dataclass(frozen=True)
class Thumbnails:
    """Thumbnails, row by row in sheets of COLUMNS x ROWS."""

    side: int
    sheets: list[bytes]  # WebP


def choose(n: int, hierarchy: Sequence[Level], first: Ints, most: int | None = None) -> Ints:
    """Indices of the images that get a thumbnail: all, or those closest to the prototypes.

    Args:
        n: number of images.
        hierarchy: coarse to fine.
        first: images that must have a thumbnail.
        most: maximum number of thumbnails; None: MAX_THUMBNAILS.

    Returns:
        (t,), sorted
    """
    most = MAX_THUMBNAILS if most is None else most
    if n <= most:
        return np.arange(n)
    chosen = np.zeros(n, dtype=bool)
    chosen[first] = True
    members = [level.members() for level in hierarchy]
    # The closest image of every prototype, starting with coarse and large ones; then the second closest, ...
    for rank in range(n):
        for level, (order, start) in zip(hierarchy, members, strict=True):
            wanted = np.flatnonzero(level.size > rank)
            wanted = wanted[np.argsort(-level.size[wanted], kind="stable")]
            new = order[start[wanted] + rank]
            new = new[~chosen[new]]
            room = most - int(chosen.sum())
            chosen[new[:room]] = True
            if len(new) >= room:
                return np.flatnonzero(chosen)
    raise AssertionError("every image belongs to a prototype")


def by_cluster(images: Ints, hierarchy: Sequence[Level]) -> Ints:
    """Order images so that those of a cluster lie on one sheet or two, and those of the largest clusters on the first.

    Then a browser decodes few sheets to show a cluster.
    """
    rank = np.argsort(np.argsort(-hierarchy[0].size, kind="stable"), kind="stable")  # of each of the coarsest clusters
    finer = [level.assignment[images] for level in hierarchy[1:]]
    return images[np.lexsort([*reversed(finer), rank[hierarchy[0].assignment[images]]])]


def sample_indices(n: int, count: int) -> Ints:
    """Sorted indices of `count` random images of n; the same on every call."""
    return np.sort(random_order(n, "report", seed=0)[:count])


def pack(source: Source, images: Ints, room: int, seen: Callable[[int], None] = lambda _: None) -> Thumbnails:
    """Make thumbnails, as large as fit into `room` bytes; `seen` is called with 1 after each."""
    useful = [side for side in SIDES if side < 2 * source.side] or SIDES[-1:]
    sides = [side for side in useful if len(images) * side**2 * SMALL <= room] or SIDES[-1:]
    with ThreadPoolExecutor() as pool:
        pictures = []
        for picture in pool.map(lambda i: thumbnail(source, int(i), sides[0]), images):
            pictures.append(picture)
            seen(1)
    for side in sides:
        pictures = [picture.resize((side, side), Image.Resampling.BOX) for picture in pictures]
        starts = range(0, len(pictures), COLUMNS * ROWS)
        sheets = [_sheet(pictures[i : i + COLUMNS * ROWS], side) for i in starts]
        if sum(map(len, sheets)) <= room:
            break
    return Thumbnails(side, sheets)


def thumbnail(source: Source, i: int, side: int) -> Image.Image:
    """The central square of an image, `side` pixels wide."""
    return ImageOps.fit(Image.fromarray(source.load(i)), (side, side), Image.Resampling.BICUBIC)


def _sheet(pictures: Sequence[Image.Image], side: int) -> bytes:
    rows = -(-len(pictures) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * side, rows * side))
    for i, picture in enumerate(pictures):
        sheet.paste(picture, (i % COLUMNS * side, i // COLUMNS * side))
    buffer = io.BytesIO()
    sheet.save(buffer, format="WEBP", quality=QUALITY, method=2)
    return buffer.getvalue()
