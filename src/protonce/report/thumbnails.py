"""Small pictures of some images, packed into sheets: a page holds thousands of them in a few megabytes."""

import base64
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from protonce import randomness
from protonce.data.sources import Source
from protonce.report.hierarchy import Ints, Level

MOST = 8_000  # thumbnails on a page
BYTES = 9_000_000  # of all sheets together, before base64 adds a third
SIDE = 48  # pixels, at most
COLUMNS, ROWS = 32, 16  # of a sheet
QUALITIES = (75, 50, 25, 5)


@dataclass(frozen=True)
class Thumbnails:
    """Pictures of `images`, row by row in sheets of COLUMNS x ROWS."""

    images: Ints  # (t,)
    side: int
    sheets: list[str]  # data: addresses


def choose(n: int, hierarchy: Sequence[Level], first: Ints, most: int = MOST) -> Ints:
    """Which images get a thumbnail: all, or those a person is most likely to want to see.

    Args:
        n: images there are.
        hierarchy: coarse to fine.
        first: images that must have one.
        most: that may have one.

    Returns:
        (t,), in rising order
    """
    if n <= most:
        return np.arange(n)
    chosen = np.zeros(n, dtype=bool)
    chosen[first] = True
    members = [level.members() for level in hierarchy]
    # The closest image of every prototype, the large and coarse ones first; then the second closest of each, ...
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
    raise AssertionError("every image is the member of a prototype")


def draw(n: int, count: int) -> Ints:
    """`count` of n images at random, the same whenever asked; in rising order."""
    order = np.argsort(randomness.uniform(0, "report", 0, np.arange(n), 1)[:, 0], kind="stable")
    return np.sort(order[:count])


def pack(source: Source, images: Ints, seen: Callable[[int], None] = lambda _: None) -> Thumbnails:
    """Draw the thumbnails; the quality falls where they would not fit otherwise. `seen` is told of each."""
    side = min(SIDE, max(source.side, 16))
    pictures = []
    with ThreadPoolExecutor() as pool:
        for picture in pool.map(lambda i: thumbnail(source, int(i), side), images):
            pictures.append(picture)
            seen(1)
    for quality in QUALITIES:
        sheets = [
            _sheet(pictures[i : i + COLUMNS * ROWS], side, quality) for i in range(0, len(images), COLUMNS * ROWS)
        ]
        if sum(map(len, sheets)) <= BYTES:
            break
    return Thumbnails(images, side, ["data:image/webp;base64," + base64.b64encode(sheet).decode() for sheet in sheets])


def thumbnail(source: Source, i: int, side: int) -> Image.Image:
    """The central square of an image, `side` pixels wide."""
    return ImageOps.fit(Image.fromarray(source.load(i)), (side, side), Image.Resampling.BICUBIC)


def _sheet(pictures: Sequence[Image.Image], side: int, quality: int) -> bytes:
    rows = -(-len(pictures) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * side, rows * side))
    for i, picture in enumerate(pictures):
        sheet.paste(picture, (i % COLUMNS * side, i // COLUMNS * side))
    buffer = io.BytesIO()
    sheet.save(buffer, format="WEBP", quality=quality, method=2)
    return buffer.getvalue()
