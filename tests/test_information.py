"""Mutual information by nearest neighbours: against distributions whose information is known, and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import digamma
from sklearn.feature_selection import mutual_info_classif
from sklearn.metrics import mutual_info_score

from protonce.agreement import mutual_information, table
from protonce.cli import main
from protonce.data.sources import random_order
from protonce.errors import UserError
from protonce.evaluate.information import ross
from protonce.evaluate.protocols import evaluate
from protonce.run import read_assignments


def two_normals(distance):
    """I between a fair label and a normal variable whose mean it moves by `distance`, by integration; nats."""

    def density(x, mean):
        return math.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi)

    def term(x):
        both = (density(x, 0) + density(x, distance)) / 2
        return sum(d / 2 * math.log(d / both) for d in (density(x, 0), density(x, distance)) if d > 0)

    return quad(term, -12, 12 + distance, limit=200)[0]


@pytest.mark.parametrize("distance", [0.0, 1.0, 2.0, 6.0])
@pytest.mark.parametrize("dim", [1, 2])
def test_normals_of_known_information(dim, distance):
    """In two dimensions the distance lies along the diagonal: the information stays that of one."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 4000)
    points = rng.normal(size=(4000, dim)) + labels[:, None] * distance / math.sqrt(dim)
    assert ross(torch.from_numpy(points), labels) == pytest.approx(two_normals(distance), abs=0.05)


def test_overlapping_boxes_by_hand():
    """Uniform on [0, 1] and on [0.5, 1.5]: outside of the common half the label is certain: log 2 / 2."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 4000)
    points = rng.uniform(size=(4000, 1)) + 0.5 * labels[:, None]
    assert ross(torch.from_numpy(points), labels) == pytest.approx(math.log(2) / 2, abs=0.05)


def test_in_eight_dimensions_more_distance_is_more_information():
    """Only the order, and that the estimate of what is certain falls short of the entropy, but not of half of it."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 4, 1500)
    noise, centres = rng.normal(size=(1500, 8)), rng.normal(size=(4, 8))
    found = [ross(torch.from_numpy(noise + d * centres[labels]), labels) for d in (0, 0.5, 1, 4)]
    assert found == sorted(found)
    assert abs(found[0]) < 0.05
    assert math.log(4) / 2 < found[-1] < math.log(4) + 0.05


@pytest.mark.parametrize("k", [1, 3, 7])
def test_one_dimension_is_scikit_learns(k):
    rng = np.random.default_rng(3)
    points = rng.normal(size=(600, 1))
    labels = (points[:, 0] + rng.normal(size=600) > 0).astype(int) + (points[:, 0] > 1)
    labels[:2] = [3, 4]  # a label with one point is left out by both
    expected = mutual_info_classif(points, labels, n_neighbors=k, random_state=0)[0]
    assert ross(torch.from_numpy(points), labels, k) == pytest.approx(max(expected, 0), abs=1e-6)


def test_discrete_points_are_counted_exactly():
    """Prototypes: where the k-th distance is 0 the estimate is that of a discrete variable."""
    rng = np.random.default_rng(4)
    place = rng.integers(0, 20, 4000)
    labels = (place // 4 + (rng.random(4000) < 0.3) * rng.integers(0, 5, 4000)) % 5
    centroids = torch.randn(20, 16, generator=torch.Generator().manual_seed(0))
    exact = mutual_information(table(place, labels))
    assert ross(centroids[place], labels) == pytest.approx(exact, abs=0.02)
    assert ross(centroids[place] * 1e-3 + 1000, labels) == pytest.approx(exact, abs=0.02)  # rounding does not part them
    assert ross(centroids[place], rng.permutation(labels)) == pytest.approx(0, abs=0.03)


def naive_ross(points, labels, neighbours=3):
    """ψ(N) - ψ(N_x) + ψ(k) - ψ(m), point by point; squared distances of whole numbers are exact."""
    keep = [i for i in range(len(points)) if (labels == labels[i]).sum() > 1]
    terms = []
    for i in keep:
        distance = {j: ((points[i] - points[j]) ** 2).sum() for j in keep if j != i}
        own = sorted(d for j, d in distance.items() if labels[j] == labels[i])
        k = min(neighbours, len(own))
        radius = own[k - 1]
        if radius == 0:
            k, m = own.count(0) + 1, sum(d == 0 for d in distance.values()) + 1
        else:
            m = sum(d < radius for d in distance.values()) + 1
        terms.append(digamma(len(keep)) - digamma(len(own) + 1) + digamma(k) - digamma(m))
    return np.mean(terms)


def test_by_a_loop_over_its_definition():
    """With ties at distance 0 among the points, and a label that has one point."""
    rng = np.random.default_rng(5)
    points = rng.integers(0, 4, (60, 2)).astype(float)
    points[:30] += rng.normal(size=(30, 2))
    labels = rng.integers(0, 3, 60)
    labels[0] = 7  # alone
    assert ross(torch.from_numpy(points), labels) == pytest.approx(naive_ross(points, labels), abs=1e-9)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_equal_distances_are_equal_despite_rounding(k):
    """A grid turned, scaled and moved: its distances are those of whole numbers, and only rounding parts them."""
    rng = np.random.default_rng(7)
    grid, labels = rng.integers(0, 3, (150, 5)), rng.integers(0, 3, 150)
    expected = naive_ross(grid, labels, k)
    for seed in range(5):
        turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(5, 5)))
        order = rng.permutation(150)
        points = torch.from_numpy(grid @ turn / 7 + 100 * seed)[order]
        assert ross(points, labels[order], k) == pytest.approx(expected, abs=1e-9)


def test_copies_that_differ_by_rounding_are_equal():
    rng = np.random.default_rng(8)
    places, labels = rng.normal(size=(20, 16))[rng.integers(0, 20, 300)], rng.integers(0, 3, 300)
    noise = 1e-15 * rng.normal(size=places.shape)  # a few units in the last place
    assert ross(torch.from_numpy(places + noise), labels) == pytest.approx(naive_ross(places, labels), abs=1e-9)


def test_blocks_do_not_change_the_result(monkeypatch):
    from protonce.evaluate import information

    rng = np.random.default_rng(6)
    points, labels = torch.from_numpy(rng.normal(size=(200, 3))), rng.integers(0, 3, 200)
    whole = ross(points, labels)
    monkeypatch.setattr(information, "_BLOCK", 200 * 7)
    assert ross(points, labels) == pytest.approx(whole, rel=1e-12)
    assert ross(points[:2], np.array([0, 1])) == 0.0  # nothing to compare with


def test_information_of_a_sample(trained):
    """Estimates on the images drawn, by hand; the exact value on all, from the assignment the run has kept."""
    result = evaluate(trained, "information", quiet=True, most=30, neighbours=2)
    metrics, source = result["metrics"], trained.source()
    codes = np.array([int(label[-1]) for label in source.labels])
    chosen = np.sort(random_order(48, "information", 0)[:30])
    (embeddings,) = trained.features(source, "momentum")
    assert metrics["features"] == pytest.approx(ross(embeddings[chosen], codes[chosen], 2), abs=1e-6)
    for k, c in zip(trained.settings.clusters, trained.prototypes, strict=True):
        assert metrics[f"prototypes, k = {k}; exact"] == pytest.approx(mutual_info_score(codes, c.assignment))
        nearest = (embeddings[chosen] @ c.centroids.T).argmax(dim=1)
        expected = ross(c.centroids[nearest], codes[chosen], 2)
        assert metrics[f"prototypes, k = {k}"] == pytest.approx(expected, abs=1e-6)
    assert metrics["entropy of the labels"] == pytest.approx(np.log(3))
    assert result["settings"]["images"] == 30


def test_information_over_training(trained, others, capsys):
    """At every recorded epoch as scikit-learn computes it; what chance gives is the mean over many shuffles."""
    codes = np.array([int(label[-1]) for label in trained.images[1]])
    assert main(["evaluate", str(trained.path), "information", "--over-training"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    found = trained.evaluations["information"]["details"]["over_training"]
    assert (found["epochs"], found["clusters"]) == ([1, 2, 3], [4, 8])
    rng = np.random.default_rng(0)
    for m, k in enumerate((4, 8)):
        clusters = [read_assignments(trained.path, epoch)[m] for epoch in (1, 2, 3)]
        expected = [mutual_info_score(codes, one) for one in clusters]
        assert found["exact"][m] == pytest.approx(expected)
        shuffled = np.mean([mutual_info_score(rng.permutation(codes), clusters[0]) for _ in range(200)])
        assert found["shuffled"][m][0] == pytest.approx(shuffled, abs=0.02)
        assert f"{expected[0]:.3f} to {expected[2]:.3f} for k = {k}" in printed
    assert "features of earlier epochs are not kept" in printed
    assert "details" not in evaluate(trained, "information", quiet=True)
    with pytest.raises(UserError, match=r"recorded of its own images, not of .*; leave out --train and --test"):
        evaluate(trained, "information", quiet=True, test=others, over_training=True)
    with pytest.raises(UserError, match="setting over_training is 'yes'; it takes true or false"):
        evaluate(trained, "information", quiet=True, over_training="yes")


def test_an_imported_run_has_no_epochs(trained, photos, tmp_path, capsys):
    out = tmp_path / "imported"
    assert main(["import", "untrained", "--like", str(trained.path), "--data", str(photos), "--out", str(out)]) == 0
    assert main(["evaluate", str(out), "information", "--over-training"]) == 2
    assert "recorded no clusters in training; leave out --over-training" in capsys.readouterr().err
