"""Comparisons that do not depend on rounding: against a naive loop."""

import numpy as np
import pytest
import torch

from protonce import ties


def naive_groups(values, tolerance):
    """Index groups: the smallest value that is left, and all others within the tolerance of it."""
    left, groups = set(range(len(values))), []
    while left:
        smallest = min(values[i] for i in left)
        groups.append(sorted(i for i in left if values[i] <= smallest + tolerance))
        left -= set(groups[-1])
    return groups


def noisy(rng, shape):
    """Few distinct values, none of them twice in the same bits."""
    return rng.integers(0, 6, shape) / 7 + rng.uniform(-1e-8, 1e-8, shape)


@pytest.mark.parametrize("seed", range(5))
def test_ranks_by_a_loop(seed):
    rng = np.random.default_rng(seed)
    values = np.concatenate([noisy(rng, 40), rng.random(20), [np.inf, -np.inf, np.inf]])
    for tolerance in (1e-6, 0.05):  # with 0.05 most values are closer to the next one than that
        groups = naive_groups(values, tolerance)
        found = ties.ranks(values, tolerance)
        assert [np.flatnonzero(found == r).tolist() for r in range(len(groups))] == groups
    assert len(ties.ranks(values[:0], 1e-6)) == 0


def test_no_group_is_wider_than_the_tolerance():
    """A million dense values, each within the tolerance of the next, keep their order."""
    values = np.linspace(0, 1, 1_000_001)
    found = ties.ranks(values[::-1], 1e-5)[::-1]
    assert (np.diff(found) >= 0).all()
    assert found[-1] == pytest.approx(1e5, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_groups_of_rows_by_a_loop(seed):
    rng = np.random.default_rng(seed)
    values = noisy(rng, (7, 30))
    values[:2, 0] = -np.inf  # as knn marks a row that is left out
    descending = -np.sort(-values, axis=1)
    found = ties.group_values(torch.from_numpy(descending), 1e-6)
    for row, firsts in zip(descending, found.numpy(), strict=True):
        for group in naive_groups(-row, 1e-6):
            assert (firsts[group] == row[group[0]]).all()


def test_the_first_of_the_highest_by_a_loop():
    values = noisy(np.random.default_rng(0), (50, 9))
    found = ties.first_of_highest(values, 1e-6)
    assert found.tolist() == [naive_groups(-row, 1e-6)[0][0] for row in values]
    assert ties.first_of_highest(values, np.full(50, 1e-6)).tolist() == found.tolist()
    assert ties.first_of_highest(np.array([1.0, 2.0, 2.0 + 1e-9]), 1e-6) == 1


def test_logits_exceed_by_more_than_rounding():
    value = torch.tensor([1.0, 1.001, 1e-9, 50.0, 50.01, -3.0, -3.0, -5.0])
    other = torch.tensor([1.0, 1.0, 0.0, 49.9999, 50.0, -torch.inf, -3.00001, -4.0])
    assert ties.exceeds(value, other).tolist() == [False, True, False, False, True, True, False, False]


@pytest.mark.parametrize("k", [1, 2, 5, 11, 12])
def test_the_highest_by_a_loop_in_order_or_as_a_set(k):
    values = noisy(np.random.default_rng(1), (60, 12))
    values[:5, 3] = np.inf
    expected = [[j for group in naive_groups(-row, 1e-6) for j in sorted(group)][:k] for row in values]
    found = torch.from_numpy(values)
    assert ties.highest(found, k, 1e-6).tolist() == expected
    assert ties.highest(found, k, 1e-6, block=1).tolist() == expected
    assert ties.highest_set(found, k, 1e-6).sort(dim=1).values.tolist() == [sorted(row) for row in expected]
