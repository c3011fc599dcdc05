"""The hierarchy: members, purity, outliers and near-duplicates."""

import numpy as np
import pytest

from pages import level
from protonce.report.hierarchy import NO_LABEL, classes_of, cluster_purity, levels


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


def test_images_equal_up_to_rounding_keep_their_order():
    """Whole distances with noise: members come in the order of the whole ones."""
    rng = np.random.default_rng(2)
    assignment, whole = rng.permutation(np.arange(120) % 4), rng.integers(0, 5, 120)
    noisy = level(assignment, (whole / 5 + rng.uniform(-1e-7, 1e-7, 120)).astype(np.float32))
    order, start = noisy.members()
    for c in range(4):
        expected = sorted(np.flatnonzero(assignment == c), key=lambda i: (whole[i], i))
        assert order[start[c] : start[c + 1]].tolist() == expected


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
