"""Optimizers and learning rate schedules."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from timm.optim.lars import Lars
from torch import nn

from protonce.config import Resolved
from protonce.context import Progress


def build_optimizer(groups: list[dict[str, Any]], settings: Resolved) -> torch.optim.Optimizer:
    """SGD, LARS or AdamW over the parameter groups of a system.

    LARS and AdamW decay no bias and no norm, and LARS does not adapt their rate, as is usual with both; SGD decays
    everything, as MoCo does. A group's own `weight_decay` wins.
    """
    s = settings
    if s.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=s.lr, momentum=s.sgd_momentum, weight_decay=s.weight_decay)
    parted = [part for group in groups for part in _without_decay(group)]
    if s.optimizer == "lars":
        lars: Any = Lars
        return cast(torch.optim.Optimizer, lars(parted, s.lr, s.sgd_momentum, weight_decay=s.weight_decay))
    return torch.optim.AdamW(parted, lr=s.lr, weight_decay=s.weight_decay)


def _without_decay(group: dict[str, Any]) -> list[dict[str, Any]]:
    """Split a group into matrices and kernels, which LARS adapts, and biases and norms without weight decay."""
    vectors = [p for p in group["params"] if p.ndim < 2]
    others = [p for p in group["params"] if p.ndim >= 2]
    parts = [{"always_adapt": True, **group, "params": others}, {"weight_decay": 0.0, **group, "params": vectors}]
    return [part for part in parts if part["params"]]


def learning_rate(settings: Resolved, progress: Progress) -> float:
    """Learning rate of a step: linear warm-up, then a cosine by steps or by whole epochs, or a step schedule."""
    s, epoch = settings, progress.epoch + progress.step / progress.steps
    if epoch < s.lr_warmup_epochs:
        return s.lr * min((epoch + 1 / progress.steps) / s.lr_warmup_epochs, 1.0)
    if s.schedule == "step":
        return s.lr * step_decay(epoch / s.epochs, s.drops, 0.1)
    risen = min(s.lr_warmup_epochs, s.epochs)
    if s.schedule == "cosine-epoch":
        epoch = max(float(progress.epoch), risen)
    share = (epoch - risen) / (s.epochs - risen) if risen else epoch / s.epochs
    return s.lr_final + (s.lr - s.lr_final) * 0.5 * (1 + math.cos(math.pi * share))


def step_decay(progress: float, milestones: Sequence[float], factor: float) -> float:
    """Multiplier of the learning rate: `factor` to the power of the number of milestones that `progress` has reached.

    Args:
        progress: of the training, in the unit of the milestones: epochs, or a share of all epochs.
        milestones: at which the learning rate is multiplied by `factor`.
        factor: usually below 1.
    """
    return factor ** sum(progress >= milestone for milestone in milestones)


def clip(module: nn.Module, settings: Resolved) -> None:
    """Scale the gradients down so that their norm is at most `clip_gradients`."""
    if settings.clip_gradients:
        nn.utils.clip_grad_norm_(module.parameters(), settings.clip_gradients)
