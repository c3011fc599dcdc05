"""The training loop: E-step, M-step, journal (algorithm 1)."""

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from protonce import randomness
from protonce.assembly import MomentumFeatures, Training
from protonce.checkpoints import Epoch, to_device
from protonce.context import Progress
from protonce.methods.base import Batch, Term
from protonce.optimizers import clip, learning_rate


class Journal(Protocol):
    """Is told what happens, and keeps what it likes."""

    def e_step(self, epoch: Epoch, features: MomentumFeatures) -> None:
        """An E-step was made."""

    def step(self, epoch: Epoch, batch: Batch, loss: Tensor, terms: Mapping[str, Term]) -> None:
        """An M-step was made."""

    def epoch(self, epoch: Epoch, features: MomentumFeatures) -> None:
        """An epoch has ended."""

    def end(self, features: MomentumFeatures) -> None:
        """The last epoch has ended."""


def fit(training: Training, journal: Journal) -> None:
    """Algorithm 1, from the last checkpoint to the last epoch."""
    system, begun = training.system, training.begun
    features = MomentumFeatures(training)  # V' = f_θ'(X), computed when it is asked for
    for number in range(training.start, training.settings.epochs):
        if begun is None:  # else its E-step was made before the run was interrupted
            torch.manual_seed(randomness.key(training.settings.seed, "e-step", number))
            state = system.e_step(number, features)  # C^m, φ_m; None in warm-up
            begun = Epoch(number, to_device(state, training.device))
            journal.e_step(begun, features)
        for batch in batches(training, begun):
            loss, terms = training.m_step(batch, begun.state)  # v, v', L_ProtoNCE
            update(training, loss, batch)  # θ = SGD(L_ProtoNCE, θ)
            system.after_step(batch.progress)  # θ' = m θ' + (1 - m) θ
            journal.step(begun, batch, loss, terms)
        features.forget()
        journal.epoch(begun, features)
        begun = None
    if training.beginning is not None:  # adaptation of a pretrained encoder; not in the paper
        training.average_with_start()
        features.forget()
    journal.end(features)


def batches(training: Training, epoch: Epoch) -> Iterator[Batch]:
    """The batches of an epoch that are left; of each this rank's part."""
    settings, system, loader, ranks = training.settings, training.system, training.loader, training.ranks
    torch.manual_seed(randomness.key(settings.seed, "sampler", epoch.number))
    order = system.sampler(epoch.number, epoch.state).cpu()  # (steps, B)
    if tuple(order.shape) != (system.steps, settings.batch_size):
        shape = (system.steps, settings.batch_size)
        raise ValueError(f"{type(system).__name__}.sampler returned {tuple(order.shape)}; it must return {shape}")
    parts = ranks.part(order[epoch.step :].T).T  # (steps, b)
    system.train()
    shown = loader.train(parts.flatten(), epoch.number, parts.shape[1])
    for step, (views, index) in enumerate(shown, start=epoch.step):
        labels = None if training.labels is None else training.labels[index].to(training.device)
        progress = Progress(epoch.number, step, system.steps, settings.epochs)
        # The encoder may draw for itself (dropout): from a state that depends on seed, epoch and step alone.
        torch.manual_seed(randomness.key(settings.seed, f"encoder {ranks.rank}", epoch.number, step))
        yield Batch(views, index.to(training.device), progress, labels)


def update(training: Training, loss: Tensor, batch: Batch) -> None:
    """θ = SGD(L, θ), at the rate of this step; gradients are averaged over ranks."""
    settings, optimizer = training.settings, training.optimizer
    rate = learning_rate(settings, batch.progress)
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)
    optimizer.zero_grad()
    training.fabric.backward(loss * training.weight(len(batch.index)))
    training.fabric.strategy.precision.unscale_gradients(optimizer.optimizer)
    training.system.after_backward(batch.progress)
    clip(training.system, settings)
    optimizer.step()
    training.ranks.average(training.statistics)  # what batch norm has seen on each rank becomes one statistic
