"""Linear classifiers on frozen features (table 3): softmax regression by SGD, or one SVM per class."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protonce.data.loader import Loader
from protonce.data.views import crop_views
from protonce.encoder import Encoder
from protonce.errors import UserError
from protonce.evaluate import svm
from protonce.evaluate.regression import Regression, Schedule, best_rate, choose_rate, fit, order, standardise, top
from protonce.evaluate.task import Metrics, Outcome, Task
from protonce.features import WORDS, Unchanged, extract

OF_THE_PAPER = ("ImageNet", "Places205")  # data on which the paper trains a softmax regression


def protocol(task: Task) -> Outcome:
    """Linear classifier on all labels: softmax regression, or SVMs if images may have several classes."""
    if task.multi_label:
        return _svms(task)
    given, places = task.options, task.dataset_name == "Places205"
    views = given.views
    if views == "auto":
        views = "augmented" if task.dataset_name in OF_THE_PAPER and not task.run.own else "cached"
    epochs = given.epochs if given.epochs != "auto" else 40 if places else 100
    cells = given.cells if given.cells != "auto" else 2 if places and views == "augmented" else 1
    schedule = Schedule(epochs, given.drops, 0.1, given.batch_size)
    settings = {"views": views, "epochs": epochs, "cells": cells}
    if views == "augmented":
        rate = given.lr if given.lr != "auto" else 0.3 if places else 10.0
        logits = _augmented(task, schedule, rate, cells)
    else:
        if cells != 1:
            raise UserError(f"--cells {cells} needs --views augmented; cached features are pooled to one cell")
        rate, logits = _cached(task, schedule)
    truth = torch.from_numpy(task.codes(task.test))
    metrics: Metrics = {f"top{k}": top(logits, truth, k) for k in (1, 5)}
    what = "random crops and flips" if views == "augmented" else "plain views"
    pooled = f"frozen backbone features of the query encoder, pooled to {cells} x {cells}; trained on {what}"
    notes = [f"learning rate {rate:g}, {epochs} epochs", _about_views(views, task.dataset_name)]
    return Outcome(metrics, pooled, {**settings, "lr": rate}, notes=notes, unused=["cost"])


def _about_views(views: str, dataset: str) -> str:
    """Say which of the two protocols was used, and how to get the other."""
    if views == "augmented":
        whose = f" for {dataset}" if dataset in OF_THE_PAPER else ""
        return f"new crops in each epoch, as in the paper{whose} (--views cached: features computed once)"
    return "features computed once (--views augmented: new crops in each epoch, as in the paper)"


def _svms(task: Task) -> Outcome:
    train, test = (task.features(source, "backbone")[0].numpy() for source in (task.train, task.test))
    costs = svm.candidates(task.options.cost)
    known, marks = task.marks(task.train) == 1, task.marks(task.test)
    empty = [c for c, column in zip(task.classes, known.T, strict=True) if not column.any()]
    if empty:
        raise UserError(
            f"class {empty[0]} has no images in {task.train.spec}; the SVM of each class needs at least one"
        )
    with task.steps.doing(f"{len(task.classes)} SVMs on {len(train):,} images"):
        scores, chosen = svm.decisions(svm.unit(train), known, svm.unit(test), costs)
    metrics, details = svm.precisions(scores, marks, task.classes, task.eleven_points)
    features = f"{WORDS['backbone']}, of unit length"
    settings = {"costs": dict(zip(task.classes, chosen, strict=True))}
    unused = ["views", "epochs", "lr", "drops", "batch_size", "cells"]
    return Outcome(metrics, features, settings, details, unused=unused)


def _cached(task: Task, schedule: Schedule) -> tuple[float, Tensor]:
    """Learning rate, and logits (q, C) of the test images; features are computed once."""
    (train,), (test,) = (task.features(source, "backbone") for source in (task.train, task.test))
    codes, classes, seed = torch.from_numpy(task.codes(task.train)), len(task.classes), task.options.seed
    rate = task.options.lr
    if rate == "auto":
        with task.steps.doing("learning rate on a held-out fifth", schedule.epochs) as seen:
            found = choose_rate(train, codes, classes, schedule, seed, seen)
        rate = best_rate(found)
    train, test = standardise(train, test)
    with task.steps.doing(f"softmax regression on {len(train):,} images", schedule.epochs) as seen:
        return rate, fit(train, codes, classes, [rate], schedule, seed, seen).logits(test)[:, 0]


def _augmented(task: Task, schedule: Schedule, rate: float, cells: int) -> Tensor:
    """Logits (q, C) of the test images from a classifier trained on new random crops in each epoch."""
    if task.run.own:
        raise UserError(
            "--views augmented is not available for runs with a custom encoder or views; use --views cached"
        )
    loader = task.run.loader(task.train, views=crop_views(task.run.settings), view_seed=task.options.seed)
    tested = task.run.loader(task.test)
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
    """Softmax regression on features of random crops; saved after each epoch and resumed from there."""
    state: dict[str, Any] = task.drafts.tensors()
    done = int(state.pop("epochs", torch.tensor(0)))
    classifier = Regression(**{name: value.to(loader.device) for name, value in state.items()}) if state else None
    seed = task.options.seed
    with task.steps.doing(f"softmax regression on {len(loader):,} images", schedule.epochs) as seen:
        seen(done)
        for epoch in range(done, schedule.epochs):
            step = torch.tensor([rate * schedule.rate(epoch)], device=loader.device)
            for (view,), index in loader.train(order(len(loader), seed, epoch), epoch, schedule.batch_size, every=True):
                features = encode(view)
                if classifier is None:
                    classifier = Regression.random(len(task.classes), features.shape[1], seed, loader.device)
                classifier.step(features, codes[index].to(features.device), step)
            assert classifier is not None
            task.drafts.keep_tensors({**vars(classifier), "epochs": torch.tensor(epoch + 1)})
            seen(1)
    assert classifier is not None
    return classifier


def pooled_features(encoder: Encoder, x: Tensor, cells: int) -> Tensor:
    """Features of views x, average-pooled to cells x cells; (B, cells² D).

    More than one cell are windows of the feature map at stride 1: two by two of the 7 x 7 map of a ResNet-50 at 224
    pixels are windows of 6 x 6, those of the benchmark that the paper follows for Places205 (Goyal et al. 2019).

    Raises:
        UserError: the backbone has no feature map, or one with fewer cells.
    """
    if cells == 1:
        return encoder.features(x)
    backbone: Any = encoder.backbone
    features = backbone.forward_features(x.contiguous(memory_format=torch.channels_last))
    if features.ndim != 4 or features.shape[1] != encoder.feature_dim:
        raise UserError(f"--cells {cells} needs a backbone with a feature map, (B, D, h, w); this backbone has none")
    height, width = features.shape[2:]
    if min(height, width) < cells:
        raise UserError(
            f"--cells {cells}: the feature map has only {height} x {width} cells; use --cells {min(height, width)}"
        )
    return F.avg_pool2d(features, (height - cells + 1, width - cells + 1), stride=1).flatten(1)
