"""Linear SVMs on frozen features, one per class, trained with LIBLINEAR as in the paper's appendix; and their metrics.

The published settings: features of unit length, squared hinge loss, C = 0.5, positive examples weighted twice as
much as negative ones, dual solver.
"""

import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protonce.ties import COSINE, first_of_highest, ranks

Floats = NDArray[np.floating]
Marks = NDArray[np.int8]  # (n, classes): 1 present, -1 absent, 0 present but difficult to recognise
COST = 0.5
COSTS = {  # candidates for cross-validation; from the smallest, which is chosen of several that are equally good
    "auto": (0.01, 0.1, 0.5, 1.0, 10.0),
    "benchmark": tuple(sorted([2.0**n for n in range(-19, -3)] + [10.0**n for n in range(-7, 3)])),  # Goyal et al. 2019
}
FOLDS = 3


def candidates(cost: float | Literal["auto", "benchmark"]) -> tuple[float, ...]:
    """The values of C from which the option `cost` chooses; a single one is not cross-validated."""
    return COSTS[cost] if isinstance(cost, str) else (cost,)


def unit(features: Floats) -> NDArray[np.float64]:
    """Scale rows to unit length; rows of zeros are unchanged."""
    wide = features.astype(np.float64)
    scaled: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True).clip(1e-12)
    return scaled


def decision(train: Floats, positive: NDArray[np.bool_], test: Floats, cost: float = COST) -> NDArray[np.float64]:
    """Decision function of one SVM on test images, (q,); 0 if all or no training images are positive.

    Args:
        train: unit features, (n, D).
        positive: whether each of them has the class, (n,).
        test: unit features, (q, D).
        cost: C.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    if positive.all() or not positive.any():
        return np.zeros(len(test))
    machine = LinearSVC(C=cost, class_weight={True: 2, False: 1}, max_iter=2000, dual=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 2000 iterations are part of the published settings
        machine.fit(train, positive)
    values: NDArray[np.float64] = machine.decision_function(test)
    return values


def decisions(
    train: Floats,
    marks: NDArray[np.bool_],
    test: Floats,
    costs: Sequence[float] = (COST,),
    images: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.float64], list[float]]:
    """`decision` of each class, and the C of each.

    Args:
        train: unit features, (n, D).
        marks: whether each image has each class, (n, classes).
        test: unit features, (q, D).
        costs: candidates for C; of several one is chosen for each class by cross-validation on the training images.
        images: image index of each row, if images may be repeated, (n,); None: no image is repeated.

    Returns:
        (q, classes), and C of each class
    """
    chosen = [best_cost(train, column, costs, images) if len(costs) > 1 else costs[0] for column in marks.T]
    columns = [decision(train, column, test, c) for column, c in zip(marks.T, chosen, strict=True)]
    return np.stack(columns, axis=1), chosen


def best_cost(
    train: Floats, positive: NDArray[np.bool_], costs: Sequence[float], images: NDArray[np.int64] | None = None
) -> float:
    """The C with the best average precision over three folds of the training images; the first of several.

    The published C if there are fewer than three positive or negative images. Arguments as for `decisions`.
    """
    _, first, image = np.unique(np.arange(len(positive)) if images is None else images, True, True)
    shows = positive[first]
    if min(shows.sum(), (~shows).sum()) < FOLDS:
        return COST
    folds = np.empty(len(shows), dtype=np.int64)
    for value in (True, False):  # stratified, and all rows of an image in the same fold
        members = np.flatnonzero(shows == value)
        folds[members] = np.arange(len(members)) % FOLDS
    fold = folds[image]
    precisions = []
    for cost in costs:
        scores = np.empty(len(positive))
        for f in range(FOLDS):
            scores[fold == f] = decision(train[fold != f], positive[fold != f], train[fold == f], cost)
        held = [average_precision(scores[fold == f], positive[fold == f]) for f in range(FOLDS)]
        precisions.append(np.mean(held))
    return costs[int(first_of_highest(np.array(precisions), 1e-9))]


def average_precision(scores: Floats, positive: NDArray[np.bool_], eleven_points: bool = False) -> float:
    """AP of a ranking: precision, made monotonic, averaged over recall.

    Args:
        scores: of each image, (q,); of scores that are equal up to rounding the last ranks first, as in the published
            code.
        positive: whether each image has the class, (q,), at least one.
        eleven_points: average at recalls 0, 0.1, ..., 1, the rule of VOC up to 2009; otherwise over the whole curve.
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
    return float(precision[ranked].sum() / hits[-1])  # recall grows by the same amount at each hit


def mean_average_precision(
    scores: Floats, marks: Marks, *, ignore_difficult: bool, eleven_points: bool = False
) -> tuple[float, list[float]]:
    """Mean AP over the classes with a positive image, and the AP of each class; NaN for a class without one.

    Args:
        scores: (q, classes).
        marks: (q, classes).
        ignore_difficult: ignore images whose objects of a class are all difficult (the devkit's rule); otherwise count
            them as negative (the published code's rule).
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
    """Compute mAP as published and by the data set's own rule, and the AP of each class."""
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
    """Share of images whose class has the highest score; of equal scores up to rounding the first counts."""
    winner = first_of_highest(scores, COSINE * np.abs(scores).max(axis=1).clip(1))
    return float((np.asarray(classes)[winner] == np.asarray(truth)).mean())
