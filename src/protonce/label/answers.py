"""The label, or the labels, of all images from those of a few: two ways to answer, by how many an image may have."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from protonce.label.classifiers import (
    CLASSIFIERS,
    NEVER,
    STRENGTHS,
    best_temperature,
    choose,
    fit_linear,
    folds,
    temperature,
    winners,
)
from protonce.label.labels_file import BETWEEN
from protonce.ties import LOGIT

FEW = 40  # labelled images that are held out one by one


@dataclass(frozen=True)
class Answer:
    """Labels of all n images."""

    label: list[str]  # several in alphabetical order, with | in between
    confidence: Tensor  # that it is right, (n,)
    held_out: dict[int, tuple[str, float]]  # of labelled images by a classifier that had not seen them, by their number
    classifier: str
    accuracies: dict[str, float]  # of each classifier on labelled images held out; empty: there are none


def one_label(x: Tensor, images: Tensor, given: Sequence[tuple[str, ...]], seed: int) -> Answer:
    """Each image has one label.

    Args:
        x: features of all images, unit vectors, (n, D).
        images: those with a label, (l,).
        given: their labels.
        seed: of the folds.
    """
    names = sorted({own[0] for own in given})
    codes = torch.tensor([names.index(own[0]) for own in given])
    known = x[images]
    name, accuracies, held_out = choose(known, codes, len(names), seed)
    tested = ~held_out.isnan().any(dim=1)
    t = temperature(held_out[tested], codes[tested]) if accuracies else 1.0
    chosen, confidence = _most_likely(CLASSIFIERS[name](known, codes, len(names), x), t)
    out, certainty = _most_likely(held_out[tested], t) if accuracies else ([], torch.empty(0))
    numbers = tested.nonzero()[:, 0].tolist()
    found = {i: (names[c], p) for i, c, p in zip(numbers, out, certainty.tolist(), strict=True)}
    return Answer([names[c] for c in chosen], confidence, found, name, accuracies)


def _most_likely(logits: Tensor, t: float) -> tuple[list[int], Tensor]:
    """The class with the highest logit, and its probability at this temperature."""
    chosen = winners(logits)
    return chosen.tolist(), (logits.double() / t).softmax(dim=1).gather(1, chosen[:, None])[:, 0]


def several_labels(x: Tensor, images: Tensor, given: Sequence[tuple[str, ...]], seed: int) -> Answer:
    """Each image has one label or more: a logistic regression for each label, all with the same penalty.

    An image gets the labels whose probability is above a half, and at least the most likely one. The confidence is that
    all of them are right, and no other: a power of what it were if labels were independent, fitted to images held out.

    Args:
        x: features of all images, unit vectors, (n, D).
        images: those with a label, (l,).
        given: their labels.
        seed: of the folds.
    """
    names = sorted({label for own in given for label in own})
    marks = torch.tensor([[name in own for name in names] for own in given])  # (l, C)
    known = x[images]
    rarest = torch.tensor([int(marks[:, row].sum(dim=0).min()) for row in marks])  # images with its rarest label
    alone = len(given) <= FEW  # then the other image with a rare label is never in the same fold
    fold = np.arange(len(given)) if alone else folds(torch.zeros(len(given), dtype=torch.long), seed)
    fold[rarest.numpy() < 2] = NEVER  # no other image has that label
    tested = torch.from_numpy(fold != NEVER)

    def scores(train: Tensor, asked: Tensor, strength: float) -> Tensor:
        def loss(logits: Tensor) -> Tensor:
            return F.binary_cross_entropy_with_logits(logits, marks[train].double(), reduction="sum")

        return fit_linear(known[train], loss, len(names), asked, strength)

    held_out = {s: known.new_zeros(len(known), len(names)) for s in STRENGTHS}
    for which in np.unique(fold[fold != NEVER]):
        out = torch.from_numpy(fold == which)
        for strength, found in held_out.items():
            found[out] = scores(~out, known[out], strength)
    right = {s: int((_decide(z) == marks).all(dim=1)[tested].sum()) for s, z in held_out.items()}
    best = max(right, key=lambda s: right[s])
    logits = scores(torch.ones(len(known), dtype=torch.bool), x, best)
    texts, p = _sets(logits, names)
    out_texts, out_p = _sets(held_out[best], names)
    power = 1.0
    if tested.any():
        is_right = (_decide(held_out[best]) == marks).all(dim=1)[tested].double()
        power = _power(out_p[tested], is_right)
    certainty = out_p**power
    return Answer(
        texts,
        p**power,
        {i: (out_texts[i], float(certainty[i])) for i in tested.nonzero()[:, 0].tolist()},
        f"linear for each label, C = {best:g}",
        {f"linear for each label, C = {s:g}": count / int(tested.sum()) for s, count in right.items()}
        if tested.any()
        else {},
    )


def _decide(logits: Tensor) -> Tensor:
    """Labels whose probability is above a half, and the most likely one; (n, C) of bool."""
    most = F.one_hot(winners(logits), logits.shape[1]).bool()
    return (logits > LOGIT) | most


def _power(p: Tensor, is_right: Tensor) -> float:
    """The power of the probabilities p (t,) that is calibrated: the smallest cross-entropy with what was right (t,).

    As in `temperature`, an image is added that could be right or wrong.
    """
    target = torch.cat([is_right, is_right.new_tensor([0.5])])

    def loss(power: float) -> float:
        found = p**power
        return float(
            F.binary_cross_entropy(torch.cat([found, found.mean()[None]]).clamp(max=1.0), target, reduction="sum")
        )

    return best_temperature(loss)


def _sets(logits: Tensor, names: Sequence[str]) -> tuple[list[str], Tensor]:
    """The labels of each image as text, and the probability of these and no others if labels are independent."""
    chosen = _decide(logits)
    p = torch.sigmoid(logits.double())
    texts = [BETWEEN.join(name for name, own in zip(names, row, strict=True) if own) for row in chosen.tolist()]
    return texts, torch.where(chosen, p, 1 - p).prod(dim=1)
