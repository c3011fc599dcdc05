"""Check boxes against their image, and collect the objects of an image."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from protonce.data.folders import open_regular
from protonce.data.objects import Objects
from protonce.data.pictures import stored_size

TOLERANCE = 1.0  # pixels: annotation tools round, and some count VOC's pixels from 0


class Kept(NamedTuple):
    """One object of an image, checked."""

    box: Sequence[float]  # x0, y0, x1, y1
    code: int  # index of its class
    difficult: bool = False
    crowd: bool = False
    area: float | None = None  # None: that of the box
    mask: Any = None


def stack(kept: Sequence[Kept], *, masks: bool) -> Objects:
    """The objects of one image as arrays; there may be none."""
    boxes = np.array([one.box for one in kept], dtype=np.float32).reshape(-1, 4)
    sides = boxes[:, 2:].astype(np.float64) - boxes[:, :2]
    areas = [side.prod() if one.area is None else one.area for one, side in zip(kept, sides, strict=True)]
    return Objects(
        boxes=boxes,
        classes=np.array([one.code for one in kept], dtype=np.int64),
        difficult=np.array([one.difficult for one in kept], dtype=bool),
        crowd=np.array([one.crowd for one in kept], dtype=bool),
        areas=np.array(areas, dtype=np.float32),
        masks=[one.mask for one in kept] if masks else None,
    )


def clip(
    box: Sequence[float], width: int, height: int, written: Sequence[float] | None = None
) -> tuple[list[float] | None, str]:
    """Clip a box to its image.

    Args:
        box: x0, y0, x1, y1.
        width: of the image.
        height: of the image.
        written: the numbers in the file, if they are others, to be found there.

    Returns:
        the box, or None if nothing of it is left; and what was wrong with it, empty if nothing was
    """
    numbers = f"({', '.join(f'{value:g}' for value in written or box)})"
    if not all(map(math.isfinite, box)):
        return None, f"its box {numbers} is not finite and was left out"
    x0, y0, x1, y1 = box
    if x1 <= x0 or y1 <= y0:
        return None, f"its box {numbers} has no area and was left out"
    # As float32, in which a very narrow box may have no width.
    clipped = [float(np.float32(min(max(v, 0), most))) for v, most in zip(box, (width, height) * 2, strict=True)]
    image = f"the image of {width} x {height} pixels"
    if clipped[2] <= clipped[0] or clipped[3] <= clipped[1]:
        return None, f"its box {numbers} has no area within {image} and was left out"
    beyond = max(-x0, -y0, x1 - width, y1 - height) > TOLERANCE
    return clipped, f"its box {numbers} reaches beyond {image} and was clipped" if beyond else ""


def measure(file: Path) -> tuple[int, int] | str:
    """Width and height of an image file as it is stored, or why it cannot be read."""
    try:
        with open_regular(file) as opened:
            return stored_size(opened)
    except FileNotFoundError:
        return "does not exist"
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        return str(getattr(error, "strerror", None) or error)
