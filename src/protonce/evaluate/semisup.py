"""Semi-supervised learning: fine-tune the whole encoder on a fraction of the labels (table 2)."""

import copy
import functools
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from protonce import randomness
from protonce.data.loader import Loader
from protonce.data.sources import Source
from protonce.data.views import crop_views
from protonce.encoder import Encoder
from protonce.errors import UserError
from protonce.evaluate.regression import MOMENTUM, Schedule, order, top
from protonce.evaluate.task import Metrics, Outcome, Task, over_draws, single_labels
from protonce.features import extract


class Classifier(nn.Module):
    """A copy of an encoder with a new linear layer on its pooled backbone features."""

    def __init__(self, encoder: Encoder, classes: int, seed: int) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder).requires_grad_(True)
        self.linear = nn.Linear(encoder.feature_dim, classes)
        generator = randomness.generator(seed, "classifier")
        nn.init.normal_(self.linear.weight, std=0.01, generator=generator)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of views (B, ...); (B, classes)."""
        scores: Tensor = self.linear(self.encoder.features(x))
        return scores


def part_of(codes: NDArray[np.int64], share: float, seed: int, number: int) -> NDArray[np.int64]:
    """Sorted indices of a random share of the images, stratified by class, with at least one image of each class.

    Args:
        codes: the class of each image, (n,).
        share: above 0, at most 1.
        seed: of the draws.
        number: of this draw.
    """
    rank = randomness.uniform(seed, f"part of {share}", number, np.arange(len(codes)), 1)[:, 0]
    chosen = []
    for c in np.unique(codes):
        members = np.flatnonzero(codes == c)
        members = members[np.argsort(rank[members], kind="stable")]
        chosen.append(members[: max(round(share * len(members)), 1)])
    return np.sort(np.concatenate(chosen))


def fine_tune(
    encoder: Encoder,
    loader: Loader,
    codes: Tensor,
    classes: int,
    *,
    schedule: Schedule,
    lr: float,
    classifier_lr: float,
    weight_decay: float,
    seed: int,
    seen: Callable[[int], None] = lambda _: None,
) -> Classifier:
    """Fine-tune a copy of the encoder with a new classifier, each with its own learning rate.

    Args:
        encoder: f_θ.
        loader: of the labelled images, with views of one random crop.
        codes: the class of each of its images, (n,).
        classes: number of classes.
        schedule: epochs, learning-rate drops and batch size; every epoch uses all images.
        lr: learning rate of the backbone.
        classifier_lr: learning rate of the linear layer.
        weight_decay: of both.
        seed: of the order of the images and of the new layer.
        seen: called with 1 after each epoch.
    """
    model = Classifier(encoder, classes, seed).to(loader.device)
    groups = [
        {"params": list(model.encoder.backbone.parameters()), "lr": lr},
        {"params": list(model.linear.parameters()), "lr": classifier_lr},
    ]
    optimizer = torch.optim.SGD(groups, momentum=MOMENTUM, weight_decay=weight_decay)
    first = [group["lr"] for group in optimizer.param_groups]
    for epoch in range(schedule.epochs):
        for group, rate in zip(optimizer.param_groups, first, strict=True):
            group["lr"] = rate * schedule.rate(epoch)
        model.train()
        shuffled = order(len(loader), seed, epoch, "fine-tuning")
        for (view,), index in loader.train(shuffled, epoch, schedule.batch_size, every=True):
            loss = F.cross_entropy(model(view), codes[index].to(view.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seen(1)
    return model.eval()


def protocol(task: Task) -> Outcome:
    """Fine-tune on each share of the labels, over several draws; finished draws are not repeated."""
    options = task.options
    if task.run.own:
        raise UserError("fine-tuning is not available for runs with a custom encoder or views")
    single_labels(task.train)
    metrics: Metrics = {}
    rates = dict.fromkeys(options.shares, options.classifier_lr)
    if options.classifier_lr == "auto":
        rates = {share: 1.0 if share <= 0.01 else 0.1 for share in options.shares}
    sizes, remarks = {}, {}
    tested = task.run.loader(task.test)
    codes = task.codes(task.train)
    for share in options.shares:
        found = []
        for number in range(options.draws):
            part = task.train.subset(part_of(codes, share, options.seed, number))
            sizes[share] = len(part)
            text = f"draw {number + 1} of {options.draws}: {labels_used(codes, share, len(part))}"
            with task.steps.doing(text, options.epochs) as seen:
                make = functools.partial(_score, task, part, tested, rates[share], number, seen)
                found.append(task.drafts.piece(f"{share}/{number}", make))
        for name in found[0]:
            metric = f"{name}@{100 * share:g}%"
            metrics[metric] = over_draws([s[name] for s in found])
            remarks[metric] = labels_used(codes, share, sizes[share])
    return Outcome(
        metrics,
        "the query encoder, all layers fine-tuned on random crops and flips; plain views of the test images",
        {
            "classifier_lr": list(rates.values()),
            "images": list(sizes.values()),
            "true_shares": [round(n / len(codes), 6) for n in sizes.values()],
        },
        notes=["about the same share of each class, at least one image"],
        remarks=remarks,
    )


def labels_used(codes: NDArray[np.int64], share: float, images: int) -> str:
    """How many labels `part_of` takes, and why that is not the share that was asked for, if it is not."""
    asked, true = f"{100 * share:.1f}", f"{100 * images / len(codes):.1f}"
    if asked == true:
        return f"{images:,} images, {100 * share:g} % of the labels"
    fewest = np.bincount(codes).min()
    why = "at least one per class" if round(share * fewest) < 1 else "rounded in each class"
    return f"{images:,} images, {true} % of the labels instead of {100 * share:g} %: {why}"


def _score(
    task: Task, part: Source, tested: Loader, classifier_lr: float, number: int, seen: Callable[[int], None]
) -> dict[str, float]:
    """Top-1 and top-5 accuracy of one draw."""
    options, settings = task.options, task.run.settings
    seed = randomness.key(options.seed, "draw", number) % 2**31
    loader = task.run.loader(part, views=crop_views(settings), view_seed=seed)
    model = fine_tune(
        task.run.encoders[0],
        loader,
        torch.from_numpy(task.codes(part)),
        len(task.classes),
        schedule=Schedule(options.epochs, options.drops, 0.2, options.batch_size),
        lr=options.lr,
        classifier_lr=classifier_lr,
        weight_decay=options.weight_decay,
        seed=seed,
        seen=seen,
    )
    logits, truth = extract(model, tested), torch.from_numpy(task.codes(task.test))
    return {f"top{k}": top(logits, truth, k) for k in (1, 5)}
