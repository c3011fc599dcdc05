"""Comparisons that do not depend on rounding.

CPUs round matrix products differently, so values that are equal in exact arithmetic may differ in their last bits.
Values within a tolerance count as equal here, and the order of their index decides.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

COSINE = 1e-6  # rounding error of a float32 product of unit vectors, with room to spare
LOGIT = 1e-5  # the same for logits, relative to their size


def ranks(values: NDArray[np.floating], tolerance: float) -> NDArray[np.int64]:
    """Dense ranks from the smallest value up, one rank for values that are equal up to the tolerance; (n,).

    Each group starts at the smallest value not yet ranked and takes all values within `tolerance` of it, so no group is
    wider than the tolerance, however dense the values are.

    Args:
        values: (n,); infinite values are allowed.
        tolerance: absolute.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order].astype(np.float64)
    following = np.searchsorted(ordered, ordered + tolerance, side="right").tolist()  # where the next group starts
    starts = np.zeros(len(values), dtype=np.int64)
    i = 0
    while i < len(starts):
        starts[i] = 1
        i = following[i]
    found = np.empty_like(starts)
    found[order] = np.cumsum(starts) - 1
    return found


def group_values(descending: Tensor, tolerance: float) -> Tensor:
    """For each value of a sorted row the first value of its group; (b, k).

    Groups are those of `ranks`, from the largest value down.

    Args:
        descending: rows sorted from the largest value to the smallest, (b, k).
        tolerance: absolute.
    """
    columns = list(descending.T.contiguous())
    for j in range(1, len(columns)):
        columns[j] = torch.where(columns[j] < columns[j - 1] - tolerance, columns[j], columns[j - 1])
    return torch.stack(columns, dim=1)


def first_of_highest(values: NDArray[np.floating], tolerance: Any) -> NDArray[np.int64]:
    """Index of the first value that is the largest up to the tolerance, along the last dimension.

    Args:
        values: (..., n).
        tolerance: absolute; a number, or one for each row, (...).
    """
    threshold = values.max(axis=-1) - tolerance
    found: NDArray[np.int64] = np.argmax(values >= threshold[..., None], axis=-1)
    return found


def exceeds(value: Tensor, other: Tensor) -> Tensor:
    """Where a logit is larger than another by more than rounding; elementwise.

    Logits below 1 are compared by their difference: they are sums of products that may be larger and cancel.
    """
    return value - other > LOGIT * value.abs().clamp_min(1)
