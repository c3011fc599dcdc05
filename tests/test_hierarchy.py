"""The hierarchy: members, purity, outliers and near-duplicates."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pages import level
from protonce.report.hierarchy import NO_LABEL, classes_of, cluster_purity, levels, near_duplicates, outliers


def test_members_are_sorted_by_prototype_and_distance():
    rng = np.random.default_rng(0)
    assignment, distance = rng.permutation(np.arange(60) % 7), rng.random(60)
    order, start = level(assignment, distance).members()
    for c in range(7):
        expected = sorted(np.flatnonzero(assignment == c), key=lambda i: distance[i])
        assert order[start[c] : start[c + 1]].tolist() == expected


def test_cluster_purity_matches_a_loop():
    rng = np.random.default_rng(1)
    assignment, classes = rng.permutation(np.arange(200) % 9), rng.integers(0, 5, 200)
    known = (rng.random(200) < 0.5) & (assignment != 3)  # of cluster 3 no image has a label
    for labelled in (known, np.ones(200, dtype=bool)):
        share, label, number = cluster_purity(assignment, classes, labelled)
        for c in range(9):
            counts = np.bincount(classes[(assignment == c) & labelled], minlength=5)
            assert number[c] == counts.sum()
            if counts.sum():
                assert share[c] == pytest.approx(counts.max() / counts.sum())
                assert label[c] == counts.argmax()
            else:
                assert c == 3
                assert np.isnan(share[c])
                assert label[c] == -1


def test_unlabelled_images_form_the_last_class():
    assert classes_of(None) == ([], None)
    names, codes = classes_of(["cat", "", "ant", "cat"])
    assert names == ["ant", "cat", NO_LABEL]
    assert codes is not None
    assert codes.tolist() == [1, 2, 0, 1]
    assert classes_of(["b", "a"])[0] == ["a", "b"]


def test_outliers_are_judged_only_by_shared_prototypes():
    coarse = level([0, 0, 0, 1], [0.1, 0.5, 0.2, 0.0])
    fine = level([0, 1, 0, 2], [0.05, 0.0, 0.3, 0.0])  # 1 and 3 are alone in their fine clusters, 3 in both
    order, distance = outliers([coarse, fine])
    assert order.tolist() == [3, 1, 2, 0]
    assert distance.tolist() == pytest.approx([np.inf, 0.5, 0.2, 0.05])


def test_near_duplicates_match_brute_force(monkeypatch):
    v = F.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    v[33] = v[7]  # a duplicate
    assignment = np.arange(50) % 2
    similarity = (v @ v.T).numpy()
    np.fill_diagonal(similarity, -2)
    similarity[assignment[:, None] != assignment[None]] = -2
    expected = {(min(i, int(j)), max(i, int(j))) for i, j in enumerate(similarity.argmax(axis=1))}
    monkeypatch.setattr("protonce.report.hierarchy.BLOCK", 100)  # several blocks a cluster
    found = near_duplicates(v, level(assignment), most=1000)
    assert {(i, j) for i, j, _ in found} == expected
    assert found[0][:2] == (7, 33)
    assert [d for _, _, d in found] == sorted(d for _, _, d in found)
    for i, j, distance in found:
        assert distance == pytest.approx(max(1 - similarity[i, j], 0), abs=1e-6)
    assert near_duplicates(v, level(np.arange(50)), most=10) == []  # nobody has company


def test_images_equal_up_to_rounding_keep_their_order():
    """Whole distances with noise: members and outliers come in the order of the whole ones."""
    rng = np.random.default_rng(2)
    assignment, whole = rng.permutation(np.arange(120) % 4), rng.integers(0, 5, 120)
    noisy = level(assignment, (whole / 5 + rng.uniform(-1e-7, 1e-7, 120)).astype(np.float32))
    order, start = noisy.members()
    for c in range(4):
        expected = sorted(np.flatnonzero(assignment == c), key=lambda i: (whole[i], i))
        assert order[start[c] : start[c + 1]].tolist() == expected
    assert outliers([noisy])[0].tolist() == sorted(range(120), key=lambda i: (-whole[i], i))


def test_copies_are_paired_with_the_first():
    """Copies that rounding parts, in two clusters: each is paired with the first other one, at distance 0."""
    rng = np.random.default_rng(3)
    which = rng.permutation(np.arange(60) % 12)
    base = rng.normal(size=(12, 33))
    v = F.normalize(torch.from_numpy(base[which] * rng.uniform(0.5, 2, (60, 1))).float(), dim=1)
    # Each copy in bits of its own; closest to the prototype is not first in order.
    v *= torch.from_numpy(1 + rng.uniform(-1e-7, 1e-7, (60, 1))).float()
    found = near_duplicates(v, level(which % 2, rng.random(60).astype(np.float32)), most=1000)
    expected = []
    for i in range(60):
        first = next(j for j in range(60) if which[j] == which[i] and j != i)
        expected.append((min(i, first), max(i, first), 0.0))
    assert found == sorted(set(expected))


def test_the_hierarchy_of_a_run_is_its_prototypes(trained):
    source = trained.source()
    (embeddings,) = trained.features(source, "momentum")
    found = levels(trained, embeddings)
    assert len(found) == 2
    assert found[0].parent is None
    for m, c in enumerate(trained.prototypes):
        for i in range(len(source)):
            expected = 1 - float(embeddings[i] @ c.centroids[c.assignment[i]])
            assert found[m].distance[i] == pytest.approx(max(expected, 0), abs=1e-5)
    assert np.array_equal(found[1].parent, trained.parents[0].numpy())
