"""Low-shot classification on frozen features (table 1): linear SVMs, or nearest class means."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from protonce import randomness
from protonce.data.listings import Marks
from protonce.errors import UserError
from protonce.evaluate import svm
from protonce.evaluate.svm import Floats
from protonce.evaluate.task import Metrics, Outcome, Task, over_draws, single_labels
from protonce.features import WORDS
from protonce.shortening import enumerate_names, shorten


def draw_shots(members: Sequence[NDArray[np.int64]], k: int, seed: int, number: int) -> NDArray[np.int64]:
    """Indices of k random images of each class, one class after the other.

    An image with several classes may be drawn for each of them, as in the published code, and is then repeated.

    Args:
        members: indices of the images of each class, at least k each.
        k: images per class.
        seed: of the draws.
        number: of this draw.
    """
    chosen = []
    for c, positions in enumerate(members):
        rank = randomness.uniform(seed, f"shots {k} of class {c}", number, positions, 1)[:, 0]
        chosen.append(positions[np.argsort(rank)][:k])
    return np.concatenate(chosen)


def rare_classes(
    members: Sequence[NDArray[np.int64]], classes: Sequence[str], shots: Sequence[int], where: str
) -> list[int]:
    """Indices of the classes that have fewer images than the largest of `shots`, and must be left out.

    Raises:
        UserError: fewer than two classes have enough.
    """
    sizes = [len(positions) for positions in members]
    rare = [c for c in range(len(classes)) if sizes[c] < max(shots)]
    if len(classes) - len(rare) < 2:
        second = sorted(sizes)[-2]  # two classes have as many
        fitting = ",".join(str(k) for k in shots if k <= second) or str(second)
        raise UserError(
            f"fewer than two classes of {where} have the {max(shots)} images that --shots asks for; "
            f"use --shots {fitting}"
        )
    return rare


def class_means(train: Floats, marks: NDArray[np.bool_], test: Floats) -> NDArray[np.float64]:
    """Negative squared distance to the mean of each class, the prototype of section 3.5; (q, classes).

    Args:
        train: unit features, (n, D).
        marks: whether each image has each class, (n, classes).
        test: unit features, (q, D).
    """
    means = (marks.T / marks.sum(axis=0)[:, None]) @ train  # (classes, D)
    squared: NDArray[np.float64] = (test**2).sum(axis=1)[:, None] - 2 * test @ means.T + (means**2).sum(axis=1)
    return -squared


def protocol(task: Task) -> Outcome:
    """Classifiers on k images per class, for each k over several draws; finished draws are not repeated."""
    options = task.options
    members = task.members(task.train)
    rare = rare_classes(members, task.classes, options.shots, task.train.spec)
    left_out = {task.classes[c]: len(members[c]) for c in rare}
    if rare:
        task = without_classes(task, rare)
        members = task.members(task.train)
    draws = {(k, i): draw_shots(members, k, options.seed, i) for k in options.shots for i in range(options.draws)}
    needed = np.unique(np.concatenate(list(draws.values())))
    train = _features_of(task, needed)
    test = svm.unit(task.features(task.test, "backbone")[0].numpy())
    found: dict[int, list[dict[str, float]]] = {k: [] for k in options.shots}
    text = f"{options.draws} draws of {', '.join(map(str, options.shots))} images per class"
    with task.steps.doing(text, len(draws)) as seen:
        for (k, i), chosen in draws.items():
            rows = train[np.searchsorted(needed, chosen)]
            found[k].append(task.drafts.piece(f"{k}/{i}", functools.partial(_score, task, rows, chosen, test)))
            seen(1)
    metrics: Metrics = {}
    for k, scores in found.items():
        metrics |= {f"{name}@{k}": over_draws([s[name] for s in scores]) for name in scores[0]}
    return Outcome(
        metrics,
        f"{WORDS['backbone']}, of unit length",
        notes=_about_rare(left_out, options.shots),
        left_out=left_out,
        tested=len(task.test),
    )


def without_classes(task: Task, rare: Sequence[int]) -> Task:
    """The task without some classes: without their images, or without their targets if images may have several.

    Raises:
        UserError: no test image is left.
    """
    kept = np.setdiff1d(np.arange(len(task.classes)), rare)
    parts = {}
    for side, source in (("train", task.train), ("test", task.test)):
        if source.marks is not None:
            marks = Marks(
                [task.classes[c] for c in kept], source.marks.values[:, kept], eleven_points=source.marks.eleven_points
            )
            parts[side] = dataclasses.replace(source, marks=marks)
        else:
            parts[side] = source.subset(np.flatnonzero(np.isin(task.codes(source), kept)))
    if not len(parts["test"]):
        raise UserError(f"all test images of {task.test.spec} are of classes with too few training images")
    return dataclasses.replace(task, train=parts["train"], test=parts["test"])


def _about_rare(left_out: Mapping[str, int], shots: Sequence[int]) -> list[str]:
    """Say which classes were left out, and how to keep them."""
    if not left_out:
        return []
    names = enumerate_names([f"{shorten(name)} ({count})" for name, count in left_out.items()])
    fitting = ",".join(str(k) for k in shots if k <= min(left_out.values()))
    hint = f"; --shots {fitting} keeps all classes" if fitting else ""
    return [f"left out, as they have fewer than {max(shots)} training images: {names}{hint}"]


def _features_of(task: Task, drawn: NDArray[np.int64]) -> Floats:
    """Unit features of the drawn images; the others are encoded only if at least half are drawn."""
    if 2 * len(drawn) >= len(task.train):
        features = task.features(task.train, "backbone")[0][torch.from_numpy(drawn)]
    else:
        features = task.features(task.train.subset(drawn), "backbone")[0]
    return svm.unit(features.numpy())


def _score(task: Task, train: Floats, chosen: NDArray[np.int64], test: Floats) -> dict[str, float]:
    """Scores of one draw, given the features `train` and the indices `chosen` of its images."""
    options = task.options
    marks = task.marks(task.train, chosen) == 1
    if options.classifier == "mean":
        scores = class_means(train, marks, test)
    else:
        scores, _ = svm.decisions(train, marks, test, svm.candidates(options.cost), chosen)
    if task.multi_label:
        return svm.precisions(scores, task.marks(task.test), task.classes, task.eleven_points)[0]
    return {"accuracy": svm.accuracy(scores, task.classes, single_labels(task.test))}
