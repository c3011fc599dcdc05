"""Paired differences between two systems over seeds: when one leads, and how likely they are by chance."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name")


@dataclass(frozen=True)
class Lead:
    """Paired differences between two systems, one per seed, and whether one leads."""

    mean: float
    std: float  # of the differences, with n - 1
    positive: int
    seeds: int
    leads: bool


def lead(differences: Sequence[float]) -> Lead:
    """A system leads if, over at least 5 seeds, the mean exceeds the standard deviation and 4 of 5 are positive.

    Args:
        differences: of the same score, one per seed, at least two.
    """
    mean, std = statistics.fmean(differences), statistics.stdev(differences)
    positive, seeds = sum(d > 0 for d in differences), len(differences)
    return Lead(mean, std, positive, seeds, leads=seeds >= 5 and mean > std and positive >= 0.8 * seeds)


def t_test(differences: Sequence[float]) -> float:
    """Two-sided p-value of a paired t-test: how likely a mean this far from zero is, if there is no difference.

    Args:
        differences: one per seed, at least two.
    """
    from scipy.stats import ttest_1samp

    if statistics.stdev(differences) == 0:
        return 1.0 if differences[0] == 0 else 0.0
    return float(ttest_1samp(list(differences), 0.0).pvalue)


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Holm's correction of several p-values for their number, by name.

    The smallest of m values is multiplied by m, the next by m - 1, and so on; none is smaller than the one before it,
    nor above 1.
    """
    ordered = sorted(p_values, key=lambda name: p_values[name])
    scaled = [min((len(ordered) - i) * p_values[name], 1.0) for i, name in enumerate(ordered)]
    return dict(zip(ordered, itertools.accumulate(scaled, max), strict=True))
