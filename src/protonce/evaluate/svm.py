"""Linear SVMs on frozen features, one a class, as the paper's appendix trains them with LIBLINEAR; and what they score.

The published settings: features of unit length, squared hinge loss, C = 0.5, a positive example weighs as much
as two negative ones, solved in the dual.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protonce.ties import COSINE, first_of_highest, ranks

Floats = NDArray[np.floating]
Marks = NDArray[np.int8]  # (n, classes): 1 shows the class, -1 does not, 0 shows it in a way that is difficult to see
COST = 0.5
COSTS = (0.01, 0.1, 0.5, 1.0, 10.0)  # from which cross-validation chooses
FOLDS = 3


def unit(features: Floats) -> NDArray[np.float64]:
    """Rows of unit length; a row of zeros stays what it is."""
    wide = features.astype(np.float64)
    scaled: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True).clip(1e-12)
    return scaled


def decision(train: Floats, positive: NDArray[np.bool_], test: Floats, cost: float = COST) -> NDArray[np.float64]:
    """How far on the positive side of a class's SVM each test image lies; (q,). All or none positive: 0 for all.

    Args:
        train: unit features, (n, D).
        positive: which of them show the class, (n,).
        test: unit features, (q, D).
        cost: C.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    if positive.all() or not positive.any():
        return np.zeros(len(test))
    machine = LinearSVC(C=cost, class_weight={True: 2, False: 1}, max_iter=2000, dual=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 2000 rounds are part of the published settings
        machine.fit(train, positive)
    values: NDArray[np.float64] = machine.decision_function(test)
    return values


def decisions(
    train: Floats,
    marks: NDArray[np.bool_],
    test: Floats,
    cost: float | None = COST,
    images: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.float64], list[float]]:
    """`decision` for each class, and the C of each.

    Args:
        train: unit features, (n, D).
        marks: which image shows which class, (n, classes).
        test: unit features, (q, D).
        cost: C; None: chosen for each class by cross-validation on the training images.
        images: which image each row is, where one may stand several times, (n,); None: each stands once.

    Returns:
        (q, classes), and C of each class
    """
    costs = [best_cost(train, column, images) if cost is None else cost for column in marks.T]
    columns = [decision(train, column, test, c) for column, c in zip(marks.T, costs, strict=True)]
    return np.stack(columns, axis=1), costs


def best_cost(train: Floats, positive: NDArray[np.bool_], images: NDArray[np.int64] | None = None) -> float:
    """The C with the best average precision over three folds of the training images; of several the smallest.

    The published C where there are fewer than three images on a side. Arguments as for `decisions`.
    """
    _, first, image = np.unique(np.arange(len(positive)) if images is None else images, True, True)
    shows = positive[first]
    if min(shows.sum(), (~shows).sum()) < FOLDS:
        return COST
    folds = np.empty(len(shows), dtype=np.int64)
    for value in (True, False):  # each fold has its share of both, and an image is in one fold only
        members = np.flatnonzero(shows == value)
        folds[members] = np.arange(len(members)) % FOLDS
    fold = folds[image]
    precisions = []
    for cost in COSTS:
        scores = np.empty(len(positive))
        for f in range(FOLDS):
            scores[fold == f] = decision(train[fold != f], positive[fold != f], train[fold == f], cost)
        held = [average_precision(scores[fold == f], positive[fold == f]) for f in range(FOLDS)]
        precisions.append(np.mean(held))
    return COSTS[int(first_of_highest(np.array(precisions), 1e-9))]


def average_precision(scores: Floats, positive: NDArray[np.bool_], eleven_points: bool = False) -> float:
    """AP of a ranking: precision, made to fall with recall, averaged over recall.

    Args:
        scores: of each image, (q,); of two that are alike up to rounding the later stands first, as in the published
            code.
        positive: which images show the class, (q,), at least one.
        eleven_points: at recalls 0, 0.1, ..., 1, the rule of VOC up to 2009; else under the whole curve.
    """
    # Copies of an image have features, and so scores, that may differ by the rounding of float32.
    rank = ranks(scores, COSINE * max(float(np.abs(scores).max()), 1))
    ranked = positive[np.argsort(rank, kind="stable")[::-1]]
    hits = np.cumsum(ranked)
    recall, precision = hits / hits[-1], hits / np.arange(1, len(hits) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]  # the best at this recall or a higher one
    if eleven_points:
        first = np.searchsorted(recall, np.linspace(0, 1, 11) - 1e-9)
        return float(precision[first].mean())
    return float(precision[ranked].sum() / hits[-1])  # recall grows by one part at each hit


def mean_average_precision(
    scores: Floats, marks: Marks, *, ignore_difficult: bool, eleven_points: bool = False
) -> tuple[float, list[float]]:
    """Mean average precision over the classes that some image shows, and that of each; NaN for a class that none does.

    Args:
        scores: (q, classes).
        marks: (q, classes).
        ignore_difficult: images that show a class only in a way that is difficult to see do not count for it (the
            devkit's rule); else they count as not showing it (the published code's).
        eleven_points: see `average_precision`.
    """
    precisions = []
    for score, mark in zip(scores.T, marks.T, strict=True):
        counted = mark != 0 if ignore_difficult else np.ones(len(mark), dtype=bool)
        positive = mark[counted] == 1
        precisions.append(average_precision(score[counted], positive, eleven_points) if positive.any() else np.nan)
    return float(np.nanmean(precisions)), precisions


def precisions(
    scores: Floats, marks: Marks, classes: Sequence[str], eleven_points: bool
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Both means, as published and by the data set's own rule, and both for each class that some test image shows."""
    rules = {
        "map": mean_average_precision(scores, marks, ignore_difficult=False),
        "map_devkit": mean_average_precision(scores, marks, ignore_difficult=True, eleven_points=eleven_points),
    }
    by_class = {
        rule: {c: ap for c, ap in zip(classes, found, strict=True) if not np.isnan(ap)}
        for rule, (_, found) in rules.items()
    }
    return {rule: mean for rule, (mean, _) in rules.items()}, by_class


def accuracy(scores: Floats, classes: Sequence[str], truth: Sequence[str]) -> float:
    """Share of images whose class has the highest score; of classes that are alike up to rounding the first counts."""
    winner = first_of_highest(scores, COSINE * np.abs(scores).max(axis=1).clip(1))
    return float((np.asarray(classes)[winner] == np.asarray(truth)).mean())
