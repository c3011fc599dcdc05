"""Classifiers from a few images a class, on frozen features (table 1): linear SVMs, or the mean of each class."""

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protonce import randomness
from protonce.errors import UserError
from protonce.evaluate import svm
from protonce.evaluate.frozen import WORDS
from protonce.evaluate.svm import Floats
from protonce.evaluate.task import Metrics, Outcome, Task, labels_of, over_draws


def draw(marks: NDArray[np.bool_], k: int, seed: int, number: int) -> NDArray[np.int64]:
    """Positions of k images of each class, drawn by the seed, classes in turn.

    An image that shows several classes may be drawn for each of them, as in the published code, and counts as often.

    Args:
        marks: which image shows which class, (n, classes); each class at least k of them.
        k: images a class.
        seed: of the draws.
        number: of this draw.
    """
    n = len(marks)
    chosen = []
    for c, column in enumerate(marks.T):
        order = np.argsort(randomness.uniform(seed, f"shots {k} of class {c}", number, np.arange(n), 1)[:, 0])
        chosen.append(order[column[order]][:k])
    return np.concatenate(chosen)


def check_shots(marks: NDArray[np.bool_], classes: Sequence[str], shots: Sequence[int], where: str) -> None:
    """Every class has as many images as the largest of `shots` asks for.

    Raises:
        UserError: one has fewer.
    """
    counts = marks.sum(axis=0)
    fewest = int(counts.argmin())
    if counts[fewest] < max(shots):
        fitting = ",".join(str(k) for k in shots if k <= counts[fewest])
        hint = f"ask for --shots {fitting}" if fitting else "leave it out"
        raise UserError(
            f"class {classes[fewest]} has {counts[fewest]} images in {where}, and {max(shots)} are to be drawn; {hint}"
        )


def class_means(train: Floats, marks: NDArray[np.bool_], test: Floats) -> NDArray[np.float64]:
    """Similarity to the mean of each class's images, the prototype of section 3.5; (q, classes).

    Args:
        train: unit features, (n, D).
        marks: which image shows which class, (n, classes).
        test: unit features, (q, D).
    """
    means = (marks.T / marks.sum(axis=0)[:, None]) @ train  # (classes, D)
    squared: NDArray[np.float64] = (test**2).sum(axis=1)[:, None] - 2 * test @ means.T + (means**2).sum(axis=1)
    return -squared


def protocol(task: Task) -> Outcome:
    """Classifiers on k images a class, for each k over several draws; a draw that was finished is not made again."""
    options = task.options
    marks = task.marks(task.train) == 1
    check_shots(marks, task.classes, options.shots, task.train.spec)
    (train,), (test,) = (task.features(source, "backbone") for source in (task.train, task.test))
    known, tested = svm.unit(train.numpy()), svm.unit(test.numpy())
    metrics: Metrics = {}
    with task.steps.doing(
        f"{options.draws} draws of {', '.join(map(str, options.shots))} images a class",
        options.draws * len(options.shots),
    ) as seen:
        for k in options.shots:
            found = []
            for number in range(options.draws):
                make = functools.partial(_score, task, known, tested, k, number)
                found.append(task.drafts.piece(f"{k}/{number}", make))
                seen(1)
            metrics |= {f"{name}@{k}": over_draws([scores[name] for scores in found]) for name in found[0]}
    return Outcome(metrics, f"{WORDS['backbone']}, of unit length")


def _score(task: Task, train: Floats, test: Floats, k: int, number: int) -> dict[str, float]:
    """Scores of one draw."""
    options = task.options
    marks = task.marks(task.train) == 1
    chosen = draw(marks, k, options.seed, number)
    if options.classifier == "mean":
        scores = class_means(train[chosen], marks[chosen], test)
    else:
        fixed = svm.COST if options.cost == "auto" and k < svm.FOLDS else options.cost
        scores, _ = svm.decisions(train[chosen], marks[chosen], test, None if fixed == "auto" else fixed)
    if task.several:
        return svm.precisions(scores, task.marks(task.test), task.classes, task.eleven_points)[0]
    return {"accuracy": svm.accuracy(scores, task.classes, labels_of(task.test))}
