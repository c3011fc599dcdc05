"""Masks of objects as COCO writes them: polygons, and run lengths as numbers or as a string.

Run lengths count pixels down the columns, from the left column to the right: first those outside the mask, then those
inside, and so on. The string has five bits of a number in each character, the lowest first, with a sixth bit that says
whether more follow; from the fourth number on, it holds the difference to the number two places before.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonce.errors import UserError, shown

FARTHEST = 100_000  # pixels from the origin to a corner of a polygon; the time to fill it grows with its length


def import_coco() -> Any:
    """The package faster_coco_eval.

    Raises:
        UserError: it is not installed.
    """
    try:
        import faster_coco_eval
    except ImportError:
        raise UserError(
            "COCO's masks and average precision need faster-coco-eval: pip install 'protonce[detection]'"
        ) from None
    return faster_coco_eval


def pixels(mask: Any, width: int, height: int) -> NDArray[np.bool_]:
    """The pixels of a mask; (h, w).

    Args:
        mask: a list of polygons, each a list of x0, y0, x1, y1, ...; or a dictionary with `size` (height and width) and
            `counts`, which is a list of run lengths or a string.
        width: of the image.
        height: of the image.

    Raises:
        ValueError: it is none of these, or not of an image of this size.
        UserError: it has polygons, and faster-coco-eval is not installed.
    """
    reason = fault(mask, width, height)
    if reason:
        raise ValueError(reason)
    if isinstance(mask, dict):
        counts = _counts(mask["counts"])
        inside = np.arange(len(counts)) % 2 == 1
        return np.repeat(inside, counts).reshape(width, height).T
    coco = import_coco().mask
    filled = coco.decode(coco.merge(coco.frPyObjects(mask, height, width)))
    return np.asarray(filled, dtype=bool)


def encode(bitmap: NDArray[np.bool_]) -> dict[str, Any]:
    """A mask (h, w) as run lengths, which need much less memory; `pixels` is the inverse."""
    height, width = bitmap.shape
    flat = np.asarray(bitmap, dtype=bool).T.ravel()
    ends = np.flatnonzero(np.diff(flat)) + 1
    first = [0] if flat.size and flat[0] else []  # the first run is outside the mask
    counts = np.diff(np.array([*first, 0, *ends.tolist(), flat.size], dtype=np.int64))
    return {"size": [height, width], "counts": counts.tolist()}


def fault(mask: Any, width: int, height: int) -> str:
    """Why a mask cannot be used for an image of this size; empty if it can."""
    if isinstance(mask, dict):
        return _fault_of_runs(mask, width, height)
    if not isinstance(mask, list) or not mask:
        return "its segmentation is neither polygons nor run lengths"
    return next((reason for polygon in mask if (reason := fault_of_polygon(polygon))), "")


def fault_of_polygon(polygon: Any) -> str:
    """Why a polygon cannot be used; empty if it can."""
    if not isinstance(polygon, list) or len(polygon) % 2 or not all(map(is_number, polygon)):
        return "a polygon is not a list of x, y, x, y, ..."
    if len(polygon) < 6:
        return f"a polygon has {len(polygon) // 2} points, fewer than 3"
    if max(map(abs, polygon)) > FARTHEST:
        return f"a polygon has a corner more than {FARTHEST:,} pixels away"
    return ""


def is_number(value: Any) -> bool:
    """Whether a value from a JSON file is a number that coordinates and areas can have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def _fault_of_runs(mask: dict[str, Any], width: int, height: int) -> str:
    if mask.get("size") != [height, width]:
        return f"its run lengths are not for an image of {width} x {height} pixels"
    try:
        counts = _counts(mask.get("counts"))
    except ValueError as error:
        return str(error)
    if sum(counts) != width * height:
        return f"its run lengths add up to {shown(sum(counts))}, not to {width} x {height} pixels"
    return ""


def _counts(counts: Any) -> Sequence[int]:
    """Run lengths as numbers.

    Raises:
        ValueError: they are neither numbers nor a string of COCO's, or one is negative.
    """
    if isinstance(counts, str | bytes):
        counts = _from_text(counts.encode() if isinstance(counts, str) else counts)
    if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("its run lengths are not whole numbers from 0 up")
    return counts


def _from_text(text: bytes) -> list[int]:
    counts: list[int] = []
    value = shift = 0
    for code in text:
        bits = code - 48
        if not 0 <= bits < 64 or shift > 60:
            raise ValueError("its run lengths are not a string in COCO's code")
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:  # the highest bit is the sign
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("its run lengths end within a number")
    return counts
