"""Partitions compared: every score against scikit-learn's or by hand, and a million items in seconds."""

import itertools

import numpy as np
import pytest
from sklearn import metrics

from protonce import agreement
from protonce.agreement import table


def partitions(seed, n=400, clusters=23, labels=7, noise=3):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, labels, n) ** 2 % labels  # of unequal sizes
    return (truth * 3 + rng.integers(0, noise * 3, n)) % clusters, np.array([f"label {t}" for t in truth])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [{}, {"clusters": 2}, {"labels": 40, "noise": 1}, {"n": 5}])
def test_scores_are_scikit_learns(seed, kind):
    clusters, labels = partitions(seed, **kind)
    t = table(clusters, labels)
    for ours, theirs in (
        (agreement.ami, metrics.adjusted_mutual_info_score),
        (agreement.nmi, metrics.normalized_mutual_info_score),
        (agreement.ari, metrics.adjusted_rand_score),
        (agreement.mutual_information, metrics.mutual_info_score),
    ):
        assert ours(t) == pytest.approx(theirs(labels, clusters), abs=1e-9), ours.__name__


def test_scores_do_not_depend_on_how_parts_are_numbered():
    clusters, labels = np.array([0, 0, 1, 1, 2, 2]), np.array([2, 2, 0, 0, 1, 1])
    for score in (agreement.ami, agreement.nmi, agreement.ari, agreement.purity, agreement.hungarian_accuracy):
        assert score(table(clusters, labels)) == pytest.approx(1), score.__name__


def test_a_single_part_has_no_information():
    """Exactly 0, as in scikit-learn: rounding must not leave 1e-16."""
    for n in range(2, 60):
        assert agreement.nmi(table(np.zeros(n, dtype=int), np.arange(n) % 2)) == 0


def test_expected_information_is_the_mean_over_all_orders():
    """By its definition: the mean over every permutation of the labels."""
    clusters, labels = np.array([0, 0, 1, 1, 1, 2]), np.array([0, 1, 1, 0, 0, 1])
    every = [agreement.mutual_information(table(clusters, labels[list(p)])) for p in itertools.permutations(range(6))]
    assert agreement.expected_mutual_information(table(clusters, labels)) == pytest.approx(np.mean(every))


def test_the_expectation_in_parts_is_the_whole(monkeypatch):
    t = table(*partitions(1))
    whole = agreement.expected_mutual_information(t)
    monkeypatch.setattr(agreement, "BLOCK", 7)
    assert agreement.expected_mutual_information(t) == pytest.approx(whole, rel=1e-12)


def test_largest_cells_match_a_loop():
    clusters, labels = partitions(2)
    dense = np.zeros((23, 7), dtype=int)
    codes = np.unique(labels, return_inverse=True)[1]
    np.add.at(dense, (clusters, codes), 1)
    dense = dense[dense.any(axis=1)][:, dense.any(axis=0)]
    t = table(clusters, labels)
    best = agreement.largest_cells(t)
    assert t.columns[best].tolist() == dense.argmax(axis=1).tolist()
    assert t.counts[best].tolist() == dense.max(axis=1).tolist()
    tied = table([0, 0, 1, 1, 1, 1], list("baccaa"))
    assert tied.columns[agreement.largest_cells(tied)].tolist() == [0, 0]


def test_purity_and_matching_by_hand():
    """Clusters aab|bb|bc: purity 2 + 2 + 1 of 7; matched one to one a, b and c: 2 + 2 + 1."""
    t = table([0, 0, 0, 1, 1, 2, 2], list("aabbbbc"))
    assert agreement.purity(t) == pytest.approx(5 / 7)
    assert agreement.hungarian_accuracy(t) == pytest.approx(5 / 7)
    t = table([0, 0, 1, 1], list("aaab"))  # both clusters are mostly, or half, `a`: only one of them can be `a`
    assert agreement.purity(t) == pytest.approx(3 / 4)
    assert agreement.hungarian_accuracy(t) == pytest.approx(3 / 4)
    t = table([0, 0, 1, 1], list("aaaa"))
    assert agreement.hungarian_accuracy(t) == pytest.approx(2 / 4)


def test_trivial_partitions():
    for clusters, labels in (([0, 0, 0], list("aaa")), ([0, 1, 2], list("abc"))):
        t = table(clusters, labels)
        assert agreement.ami(t) == agreement.nmi(t) == agreement.ari(t) == 1
    assert agreement.ami(table([0, 0, 0, 0], list("aabb"))) == pytest.approx(0)
    with pytest.raises(ValueError, match="same items"):
        table([0, 1], [0])


@pytest.mark.parametrize("values", [[3, 3, 900], [-1, 5, 5], ["x", "y", "y"], [0.5, 2.5, 2.5]])
def test_parts_may_have_labels_of_any_type(values):
    assert sorted(table(values, [0, 0, 1]).row_sizes) == [1, 2]


def test_a_million_images_and_25000_clusters():
    """What ImageNet would need: far more cells than could be looked at one by one; independent, so AMI is 0."""
    rng = np.random.default_rng(0)
    n = 1_000_000
    clusters = (rng.random(n) ** 1.3 * 25_000).astype(int)  # sizes from 30 to several hundred
    labels = rng.integers(0, 1000, n)
    t = table(clusters, labels)
    assert (len(t.row_sizes), len(t.column_sizes)) == (25_000, 1000)
    assert agreement.ami(t) == pytest.approx(0, abs=1e-3)
