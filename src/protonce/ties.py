"""Comparisons that do not depend on rounding.

CPUs round matrix products differently, so values that are equal in exact arithmetic may differ in their last bits.
Values within a tolerance count as equal here, and the order of their index decides.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
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


def highest(values: Tensor, k: int, tolerance: float, block: int = 1 << 25) -> Tensor:
    """Columns of the k highest values of each row, the highest first, ties in the order of the columns; (b, k).

    Args:
        values: (b, n).
        k: at most n.
        tolerance: absolute.
        block: values held at once where there are ties at the last place.
    """
    n = values.shape[1]
    value, position = values.topk(min(k + 1, n), dim=1)  # one more, to detect a tie at the last place
    group = group_values(value, tolerance)
    number = F.pad((group[:, 1:] < group[:, :-1]).cumsum(dim=1), (1, 0))  # index of the group of each value
    position = (number * n + position).sort(dim=1).values[:, :k] % n  # by group, then by position
    if k == n:
        return position
    column, columns = (torch.arange(size, device=values.device) for size in (k, n))
    tied = (group[:, k] == group[:, k - 1]).nonzero()[:, 0]
    for rows in tied.split(max(block // (4 * n), 1)):
        # topk took arbitrary members of the last group: take the first ones instead.
        last, compared = group[rows, k - 1, None], values[rows]
        member = (compared <= last) & (compared >= last - tolerance)  # (r, n)
        first = torch.where(member, columns.int(), n).topk(k, dim=1, largest=False).values
        start = (group[rows] > last).sum(dim=1, keepdim=True)  # column where the last group starts, (r, 1)
        filled = first.long().gather(1, (column - start).clamp_min(0))
        position[rows] = torch.where(column < start, position[rows], filled)
    return position


def highest_set(values: Tensor, k: int, tolerance: float) -> Tensor:
    """The columns of `highest` in any order, faster for large k; (b, k)."""
    if k == values.shape[1]:
        return torch.arange(k, device=values.device).expand(len(values), k)
    value, position = values.topk(k + 1, dim=1)
    tied = (value[:, k - 1] - value[:, k] <= tolerance).nonzero()[:, 0]  # else no tie is at the last place
    position = position[:, :k].contiguous()
    if len(tied):
        position[tied] = highest(values[tied], k, tolerance)
    return position


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
