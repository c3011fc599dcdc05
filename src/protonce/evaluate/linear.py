"""Linear classifiers on frozen features (table 3): softmax regression by SGD, or an SVM a class."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protonce import randomness
from protonce.data.loader import Loader
from protonce.data.views import CropViews
from protonce.encoder import Encoder
from protonce.errors import UserError
from protonce.evaluate import svm
from protonce.evaluate.frozen import WORDS, Unchanged
from protonce.evaluate.task import Metrics, Outcome, Task
from protonce.features import extract

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # from which a held-out part chooses
MOMENTUM = 0.9


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a classifier learns."""

    epochs: int
    drops: Sequence[float]  # shares of the epochs after which the rate falls
    factor: float  # by which it falls
    batch_size: int

    def rate(self, epoch: int) -> float:
        """What the first rate is multiplied by in an epoch, from 0."""
        return self.factor ** sum(epoch >= round(drop * self.epochs) for drop in self.drops)


def order(n: int, seed: int, epoch: int, purpose: str = "linear") -> Tensor:
    """The order of n images in an epoch, by the seed; (n,)."""
    return torch.randperm(n, generator=randomness.generator(seed, f"{purpose} order", epoch))


@dataclass
class Regression:
    """Softmax regressions side by side, one for each learning rate; weights (R, C, D) and biases (R, C)."""

    weight: Tensor
    bias: Tensor
    weight_velocity: Tensor  # what SGD's momentum remembers
    bias_velocity: Tensor

    @classmethod
    def zero(cls, rates: int, classes: int, dim: int, device: torch.device | str = "cpu") -> "Regression":
        """Before the first step."""
        shapes = ((rates, classes, dim), (rates, classes)) * 2
        return cls(*(torch.zeros(shape, device=device) for shape in shapes))

    def logits(self, x: Tensor) -> Tensor:
        """Scores of features (B, D); (B, R, C)."""
        rates, classes, dim = self.weight.shape
        return (x @ self.weight.view(-1, dim).T).view(-1, rates, classes) + self.bias

    def step(self, x: Tensor, codes: Tensor, rates: Tensor) -> None:
        """One step of SGD with momentum on the mean cross-entropy of a batch, each regression at its own rate.

        Args:
            x: features, (B, D).
            codes: classes, (B,).
            rates: (R,).
        """
        error = self.logits(x).softmax(dim=2)  # (B, R, C)
        error -= F.one_hot(codes, self.weight.shape[1])[:, None]  # the gradient of the loss by the logits
        error /= len(x)
        gradient = (error.flatten(1).T @ x).view_as(self.weight)
        self.weight_velocity.mul_(MOMENTUM).add_(gradient)
        self.bias_velocity.mul_(MOMENTUM).add_(error.sum(dim=0))
        self.weight -= rates[:, None, None] * self.weight_velocity
        self.bias -= rates[:, None] * self.bias_velocity


def fit(
    features: Tensor,
    codes: Tensor,
    classes: int,
    rates: Sequence[float],
    schedule: Schedule,
    seed: int,
    seen: Callable[[int], None] = lambda _: None,
) -> Regression:
    """Softmax regressions on features (n, D) with classes (n,), one for each learning rate."""
    regression = Regression.zero(len(rates), classes, features.shape[1])
    first = torch.tensor(rates)
    for epoch in range(schedule.epochs):
        for rows in order(len(features), seed, epoch).split(schedule.batch_size):
            regression.step(features[rows], codes[rows], first * schedule.rate(epoch))
        seen(1)
    return regression


def standardise(train: Tensor, *others: Tensor) -> list[Tensor]:
    """Features less their training mean and by their training deviation: a linear classifier stays one."""
    mean, std = train.mean(dim=0), train.std(dim=0).clamp_min(1e-6)
    return [(x - mean) / std for x in (train, *others)]


def choose_rate(
    features: Tensor,
    codes: Tensor,
    classes: int,
    schedule: Schedule,
    seed: int,
    seen: Callable[[int], None] = lambda _: None,
) -> dict[float, float]:
    """Accuracy on a held-out fifth of the training images for each rate."""
    held_out, rest = order(len(features), seed, 0, "linear held out").tensor_split([max(len(features) // 5, 1)])
    train, test = standardise(features[rest], features[held_out])
    regression = fit(train, codes[rest], classes, RATES, schedule, seed, seen)
    right = regression.logits(test).argmax(dim=2) == codes[held_out, None]  # (n, R)
    return dict(zip(RATES, right.double().mean(dim=0).tolist(), strict=True))


def top(logits: Tensor, codes: Tensor, k: int) -> float:
    """Share of images whose class is among the k with the highest scores; a code below 0 never is."""
    best = logits.topk(min(k, logits.shape[1]), dim=1).indices
    return float((best == codes[:, None]).any(dim=1).double().mean())


def protocol(task: Task) -> Outcome:
    """A linear classifier from all labels: softmax regression, or SVMs where an image may show several classes."""
    if task.several:
        return _machines(task)
    places = task.train.spec.startswith("Places205")
    views = task.options.views
    if views == "auto":
        views = "augmented" if places or task.train.spec.startswith("ImageNet") else "cached"
    given = task.options
    epochs = given.epochs if given.epochs != "auto" else 40 if places else 100
    cells = given.cells if given.cells != "auto" else 2 if places else 1
    schedule = Schedule(epochs, given.drops, 0.1, given.batch_size)
    settings = {"views": views, "epochs": epochs, "cells": cells}
    if views == "augmented":
        rate = given.lr if given.lr != "auto" else 0.3 if places else 10.0
        logits = _augmented(task, schedule, rate, cells)
    else:
        if cells != 1:
            raise UserError(f"--cells {cells} needs --views augmented; kept features are pooled to one cell")
        rate, logits = _cached(task, schedule)
    truth = torch.from_numpy(task.codes(task.test))
    metrics: Metrics = {f"top{k}": top(logits, truth, k) for k in (1, 5)}
    what = "random crops and flips" if views == "augmented" else "plain views"
    pooled = f"backbone features of the query encoder, pooled to {cells} x {cells}; trained on {what}, frozen"
    return Outcome(metrics, pooled, {**settings, "lr": rate}, notes=[f"learning rate {rate:g}, {epochs} epochs"])


def _machines(task: Task) -> Outcome:
    train, test = (task.features(source, "backbone")[0].numpy() for source in (task.train, task.test))
    cost = None if task.options.cost == "auto" else task.options.cost
    known, marks = task.marks(task.train) == 1, task.marks(task.test)
    empty = [c for c, column in zip(task.classes, known.T, strict=True) if not column.any() or column.all()]
    if empty:
        raise UserError(f"all or none of the images of {task.train.spec} show {empty[0]}; no SVM can learn that")
    with task.steps.doing(f"{len(task.classes)} SVMs on {len(train):,} images"):
        scores, costs = svm.decisions(svm.unit(train), known, svm.unit(test), cost)
    metrics, details = svm.precisions(scores, marks, task.classes, task.eleven_points)
    features = f"{WORDS['backbone']}, of unit length"
    return Outcome(metrics, features, {"costs": dict(zip(task.classes, costs, strict=True))}, details)


def _cached(task: Task, schedule: Schedule) -> tuple[float, Tensor]:
    """The rate, and scores (q, C) of the test images; features are computed once."""
    (train,), (test,) = (task.features(source, "backbone") for source in (task.train, task.test))
    codes, classes, seed = torch.from_numpy(task.codes(task.train)), len(task.classes), task.options.seed
    rate = task.options.lr
    if rate == "auto":
        with task.steps.doing("learning rate, by a held-out fifth", schedule.epochs) as seen:
            found = choose_rate(train, codes, classes, schedule, seed, seen)
        rate = max(found, key=lambda r: found[r])
    train, test = standardise(train, test)
    with task.steps.doing(f"softmax regression on {len(train):,} images", schedule.epochs) as seen:
        return rate, fit(train, codes, classes, [rate], schedule, seed, seen).logits(test)[:, 0]


def _augmented(task: Task, schedule: Schedule, rate: float, cells: int) -> Tensor:
    """Scores (q, C) of the test images by a classifier that sees other crops of the training images in each epoch."""
    if task.run.own:
        raise UserError("--views augmented crops images, and this run has an encoder or views of its own; use cached")
    loader, tested = task.run.loader(task.train, views=CropViews(task.run.settings)), task.run.loader(task.test)
    encoder = task.run.encoders[0].to(loader.device)
    codes = torch.from_numpy(task.codes(task.train))

    def encode(x: Tensor) -> Tensor:
        return pooled_features(encoder, x, cells)

    with Unchanged(encoder.backbone):
        classifier = _fit_augmented(task, encode, loader, codes, schedule, rate)
        with task.steps.doing(f"features of {len(tested):,} images of {task.test.spec}", len(tested)) as seen:
            return extract(lambda x: classifier.logits(encode(x))[:, 0], tested, seen=seen)


@torch.no_grad()
def _fit_augmented(
    task: Task,
    encode: Callable[[Tensor], Tensor],
    loader: Loader,
    codes: Tensor,
    schedule: Schedule,
    rate: float,
) -> Regression:
    """Softmax regression on features of random crops; what an epoch ends with is kept, and gone on from."""
    state: dict[str, Any] = task.drafts.tensors()
    done = int(state.pop("epochs", torch.tensor(0)))
    classifier = Regression(**{name: value.to(loader.device) for name, value in state.items()}) if state else None
    seed, batch_size = task.options.seed, min(schedule.batch_size, len(loader))
    with task.steps.doing(f"softmax regression on {len(loader):,} images", schedule.epochs) as seen:
        seen(done)
        for epoch in range(done, schedule.epochs):
            step = torch.tensor([rate * schedule.rate(epoch)], device=loader.device)
            for samples in loader.train(order(len(loader), seed, epoch), epoch, batch_size):
                features = encode(loader.views.train(samples)[0])
                if classifier is None:
                    classifier = Regression.zero(1, len(task.classes), features.shape[1], loader.device)
                classifier.step(features, codes[samples.index].to(features.device), step)
            assert classifier is not None
            task.drafts.keep_tensors({**vars(classifier), "epochs": torch.tensor(epoch + 1)})
            seen(1)
    assert classifier is not None
    return classifier


def pooled_features(encoder: Encoder, x: Tensor, cells: int) -> Tensor:
    """Features of views x pooled to cells x cells places; (B, cells² D).

    Raises:
        UserError: the backbone has no feature map.
    """
    if cells == 1:
        return encoder.features(x)
    backbone: Any = encoder.backbone
    features = backbone.forward_features(x.contiguous(memory_format=torch.channels_last))
    if features.ndim != 4:
        raise UserError(f"--cells {cells} needs a backbone with a feature map, (B, D, h, w); this one has none")
    return F.adaptive_avg_pool2d(features, cells).flatten(1)
