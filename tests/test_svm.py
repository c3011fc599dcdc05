"""SVMs and average precision: against scikit-learn, by hand, and with objects that are difficult to see."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from sklearn.model_selection import PredefinedSplit, cross_val_score
from sklearn.svm import LinearSVC

from protonce.errors import UserError
from protonce.evaluate import lowshot, svm


def points(n=120, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, classes, n)
    centres = np.random.default_rng(9).normal(size=(classes, 6))
    return svm.unit(centres[codes] + rng.normal(size=(n, 6))), codes, codes[:, None] == np.arange(classes)


def test_one_svm_per_class_matches_scikit_learn():
    """Positives weighing twice is the same as seeing each twice; the highest score is the class."""
    train, codes, marks = points()
    test, truth, _ = points(seed=1)
    scores, costs = svm.decisions(train, marks, test)
    assert costs == [0.5] * 3
    for c in range(3):
        twice = np.concatenate([train, train[codes == c]]), np.concatenate([marks[:, c], marks[codes == c, c]])
        theirs = LinearSVC(C=0.5, random_state=1, max_iter=100_000, tol=1e-8).fit(*twice)
        np.testing.assert_allclose(scores[:, c], theirs.decision_function(test), atol=2e-3)
    names = ["a", "b", "c"]
    expected = np.mean([names[row.argmax()] == names[t] for row, t in zip(scores, truth, strict=True)])
    assert svm.accuracy(scores, names, [names[t] for t in truth]) == pytest.approx(expected)
    assert 0.5 < expected < 1


@pytest.mark.parametrize("name", ["auto", "benchmark"])
def test_cross_validation_chooses_the_best_cost(name):
    costs = svm.candidates(name)
    train, _, marks = points()
    positive = marks[:, 0]
    fold = np.empty(len(positive), dtype=int)
    fold[positive], fold[~positive] = np.arange(positive.sum()) % 3, np.arange((~positive).sum()) % 3
    by_cost = {}
    for cost in costs:
        found = []
        for f in range(3):
            scores = svm.decision(train[fold != f], positive[fold != f], train[fold == f], cost)
            found.append(svm.average_precision(scores, positive[fold == f]))
        by_cost[cost] = np.mean(found)
    chosen = svm.best_cost(train, positive, costs)
    assert by_cost[chosen] == pytest.approx(max(by_cost.values()))
    assert svm.decisions(train, marks[:, :1], train, costs)[1] == [chosen]


def test_costs_of_the_benchmark():
    """16 powers of two and 10 powers of ten, from the smallest."""
    costs = svm.candidates("benchmark")
    assert list(costs) == sorted([0.5**n for n in range(4, 20)] + [float(f"1e{n}") for n in range(-7, 3)])
    assert (len(costs), costs[0], costs[-1]) == (26, 1e-7, 100.0)
    assert svm.candidates(0.25) == (0.25,)


@pytest.mark.filterwarnings("ignore:Liblinear failed to converge")
def test_the_benchmarks_cross_validation_chooses_as_scikit_learns():
    """On features of which few matter; its average precision is like ours, but is not made monotonic."""
    rng = np.random.default_rng(0)
    positive = rng.random(150) < 0.4
    train = svm.unit(rng.normal(size=(150, 40)) + np.outer(positive, np.arange(40) < 4))
    fold = np.empty(len(positive), dtype=int)
    fold[positive], fold[~positive] = np.arange(positive.sum()) % 3, np.arange((~positive).sum()) % 3
    costs, theirs = svm.candidates("benchmark"), []
    for cost in costs:
        machine = LinearSVC(C=cost, class_weight={True: 2, False: 1}, max_iter=2000, dual=True, random_state=0)
        theirs.append(cross_val_score(machine, train, positive, cv=PredefinedSplit(fold), scoring="average_precision"))
    chosen = costs.index(svm.best_cost(train, positive, costs))
    means = np.mean(theirs, axis=1)
    assert means[chosen] > max(means) - 0.002
    assert max(means) - min(means) > 0.03


@pytest.mark.parametrize("seed", range(5))
def test_precision_never_rises_with_recall(seed):
    """By a loop over its definition: at each hit the best precision from there on. Never below scikit-learn's."""
    rng = np.random.default_rng(seed)
    scores, positive = rng.normal(size=40), rng.random(40) < 0.3
    ranked = positive[np.argsort(-scores)]
    precision = [ranked[: i + 1].mean() for i in range(40)]
    expected = np.mean([max(precision[i:]) for i in range(40) if ranked[i]])
    assert svm.average_precision(scores, positive) == pytest.approx(expected)
    assert expected >= average_precision_score(positive, scores) - 1e-12
    recall = np.cumsum(ranked) / ranked.sum()
    eleven = [max(p for p, r in zip(precision, recall, strict=True) if r >= t / 10 - 1e-9) for t in range(11)]
    assert svm.average_precision(scores, positive, eleven_points=True) == pytest.approx(np.mean(eleven))


def test_difficult_images_by_both_rules():
    """Ranked: yes, difficult, yes, no. Ignored: both hits first, AP 1. As published, a miss: (1 + 2/3) / 2."""
    scores, marks = np.array([[4.0], [3.0], [2.0], [1.0]]), np.array([[1], [0], [1], [-1]], dtype=np.int8)
    assert svm.mean_average_precision(scores, marks, ignore_difficult=True)[0] == pytest.approx(1)
    assert svm.mean_average_precision(scores, marks, ignore_difficult=False)[0] == pytest.approx(5 / 6)
    # By eleven points as published: recall up to 0.5 at precision 1 (six points), then 2/3 (five).
    eleven = svm.mean_average_precision(scores, marks, ignore_difficult=False, eleven_points=True)[0]
    assert eleven == pytest.approx((6 + 5 * 2 / 3) / 11)


def test_a_class_without_positive_test_images_is_ignored():
    scores, marks = np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([[1, -1], [-1, -1]], dtype=np.int8)
    means, by_class = svm.precisions(scores, marks, ["cat", "dog"], eleven_points=False)
    assert means == {"map": 1.0, "map_devkit": 1.0}
    assert by_class["map"] == {"cat": 1.0}


def test_all_rows_of_an_image_are_in_the_same_fold():
    """An image that stands twice is in one fold only: its copy would know the answer."""
    train, _, marks = points()
    images = np.concatenate([np.arange(120), np.arange(1, 41)])  # a copy is not a whole number of folds away
    positive = marks[:, 0]
    seen = []
    decide = svm.decision

    def note(inside, shown, outside, cost):
        seen.append({tuple(row) for row in inside} & {tuple(row) for row in outside})
        return decide(inside, shown, outside, cost)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svm, "decision", note)
        svm.best_cost(train[images], positive[images], svm.COSTS["auto"], images)
    assert len(seen) == 3 * len(svm.COSTS["auto"])
    assert not any(seen)


@pytest.mark.parametrize("positives", [0, 1, 2, 119, 120])
def test_too_few_images_for_cross_validation_or_an_svm(positives):
    train, _, _ = points()
    positive = np.arange(120) < positives
    scores, costs = svm.decisions(train, positive[:, None], train, svm.COSTS["auto"])
    assert costs == [svm.COST]
    assert np.isfinite(scores).all()
    assert (scores == 0).all() == (positives in (0, 120))


def test_draws_are_k_of_each_class_and_independent():
    members = [np.arange(25), np.arange(20, 40)]  # five images show both
    drawn = [lowshot.draw_shots(members, 3, seed=0, number=i) for i in range(5)]
    for chosen in drawn:
        assert len(chosen) == 6
        for c, part in enumerate((chosen[:3], chosen[3:])):
            assert len(set(part)) == 3
            assert set(part) <= set(members[c])
    assert len({tuple(chosen) for chosen in drawn}) == 5
    assert (lowshot.draw_shots(members, 3, seed=0, number=1) == drawn[1]).all()


def test_classes_with_too_few_images():
    members = [np.arange(9), np.arange(3), np.arange(16), np.arange(20)]
    names = ["cat", "dog", "fox", "owl"]
    assert lowshot.rare_classes(members, names, [1, 2], "photos") == []
    assert lowshot.rare_classes(members, names, [1, 16], "photos") == [0, 1]
    with pytest.raises(UserError, match=r"fewer than two classes of photos have the 17 images .* use --shots 1,2$"):
        lowshot.rare_classes(members, names, [1, 2, 17], "photos")
    with pytest.raises(UserError, match=r"use --shots 16$"):
        lowshot.rare_classes(members, names, [17], "photos")


def test_class_means_by_hand():
    train = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    marks = np.array([[True, False], [True, False], [False, True]])
    scores = lowshot.class_means(train, marks, np.array([[0.0, 1.0], [-1.0, 0.0]]))
    np.testing.assert_allclose(scores, [[-0.5, -2.0], [-2.5, 0.0]])  # the means are (1/2, 1/2) and (-1, 0)


def test_scores_equal_up_to_rounding_are_ties():
    """Whole scores with noise: the AP is that of the whole scores, the later of two alike standing first."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        whole, positive = rng.integers(-3, 4, 50), rng.random(50) < 0.4
        ranked = positive[sorted(range(50), key=lambda i: (-whole[i], -i))]
        precision = [ranked[: i + 1].mean() for i in range(50)]
        expected = np.mean([max(precision[i:]) for i in range(50) if ranked[i]])
        assert svm.average_precision(whole + rng.uniform(-1e-8, 1e-8, 50), positive) == pytest.approx(expected)


def test_the_smallest_of_equally_good_costs_is_chosen(monkeypatch):
    train, _, marks = points()
    found = iter(0.9 + 1e-15 * np.arange(15))  # three folds for each cost
    monkeypatch.setattr(svm, "average_precision", lambda *_: next(found))
    assert svm.best_cost(train, marks[:, 0], svm.COSTS["auto"]) == svm.COSTS["auto"][0] == min(svm.COSTS["auto"])


def test_the_first_of_equally_near_classes_wins():
    """The same images drawn for two classes: their features are those of copies, and differ by rounding."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(6, 33))
    train = svm.unit(np.tile(images, (2, 1)) * rng.uniform(0.5, 2, (12, 1)).astype(np.float32))
    train *= 1 + rng.uniform(-1e-8, 1e-8, (12, 1))
    classes = ["a", "b", "c", "d"]
    codes = np.array([0, 0, 0, 2, 2, 2, 1, 1, 1, 3, 3, 3])  # a and b have the same images, c and d too
    scores = lowshot.class_means(train, codes[:, None] == np.arange(4), svm.unit(images))
    assert svm.accuracy(scores, classes, ["a"] * 3 + ["c"] * 3) == 1
    one = train[[0, 6]]  # an image that is both of the class means
    assert svm.accuracy(lowshot.class_means(one, np.eye(2, dtype=bool), one), ["a", "b"], ["a", "a"]) == 1
