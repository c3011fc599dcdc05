"""Softmax regression by SGD with momentum, for several learning rates at once; pure functions of features."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protonce import randomness
from protonce.optimizers import step_decay
from protonce.ties import exceeds

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # candidates for the learning rate
MOMENTUM = 0.9
INITIAL_STD = 0.01  # of the first weights of the paper's classifier, as in the published code


@dataclass(frozen=True)
class Schedule:
    """Epochs, batch size and learning-rate schedule of a classifier."""

    epochs: int
    drops: Sequence[float]  # shares of the epochs after which the learning rate falls
    factor: float  # by which it is multiplied
    batch_size: int

    def rate(self, epoch: int) -> float:
        """Multiplier of the initial learning rate in an epoch, from 0."""
        return step_decay(epoch, [round(drop * self.epochs) for drop in self.drops], self.factor)


def order(n: int, seed: int, epoch: int, purpose: str = "linear") -> Tensor:
    """Random order of n images in an epoch; (n,)."""
    return torch.randperm(n, generator=randomness.generator(seed, f"{purpose} order", epoch))


@dataclass
class Regression:
    """Several softmax regressions, one per learning rate; weights (R, C, D) and biases (R, C)."""

    weight: Tensor
    bias: Tensor
    weight_velocity: Tensor  # momentum buffer of SGD
    bias_velocity: Tensor

    @classmethod
    def zero(cls, rates: int, classes: int, dim: int, device: torch.device | str = "cpu") -> "Regression":
        """All parameters and momentum buffers zero."""
        shapes = ((rates, classes, dim), (rates, classes)) * 2
        return cls(*(torch.zeros(shape, device=device) for shape in shapes))

    @classmethod
    def random(cls, classes: int, dim: int, seed: int, device: torch.device | str = "cpu") -> "Regression":
        """One regression, its weights from N(0, 0.01²); the bias and the momentum buffers zero."""
        regression = cls.zero(1, classes, dim)
        regression.weight.normal_(std=INITIAL_STD, generator=randomness.generator(seed, "linear weights"))
        return cls(*(value.to(device) for value in vars(regression).values()))

    def logits(self, x: Tensor) -> Tensor:
        """Logits of features (B, D); (B, R, C)."""
        rates, classes, dim = self.weight.shape
        return (x @ self.weight.view(-1, dim).T).view(-1, rates, classes) + self.bias

    def step(self, x: Tensor, codes: Tensor, rates: Tensor) -> None:
        """One step of SGD with momentum on the mean cross-entropy of a batch, each with its own learning rate.

        Args:
            x: features, (B, D).
            codes: classes, (B,).
            rates: learning rates, (R,).
        """
        error = self.logits(x).softmax(dim=2)  # (B, R, C)
        error -= F.one_hot(codes, self.weight.shape[1])[:, None]  # gradient of the loss with respect to the logits
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
    """Fit softmax regressions to features (n, D) with classes (n,), one per learning rate."""
    regression = Regression.zero(len(rates), classes, features.shape[1])
    first = torch.tensor(rates)
    for epoch in range(schedule.epochs):
        for rows in order(len(features), seed, epoch).split(schedule.batch_size):
            regression.step(features[rows], codes[rows], first * schedule.rate(epoch))
        seen(1)
    return regression


def standardise(train: Tensor, *others: Tensor) -> list[Tensor]:
    """Standardise features by the mean and standard deviation of the training features."""
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
    """Accuracy of each learning rate on a held-out fifth of the training images."""
    held_out, rest = order(len(features), seed, 0, "linear held out").tensor_split([max(len(features) // 5, 1)])
    train, test = standardise(features[rest], features[held_out])
    regression = fit(train, codes[rest], classes, RATES, schedule, seed, seen)
    logits = regression.logits(test).unbind(dim=1)  # (n, C) for each rate
    return {rate: top(scores, codes[held_out], 1) for rate, scores in zip(RATES, logits, strict=True)}


def best_rate(accuracies: dict[float, float]) -> float:
    """The learning rate with the highest accuracy; the middle one of several."""
    best = [rate for rate, accuracy in accuracies.items() if accuracy == max(accuracies.values())]
    return best[len(best) // 2]


def top(logits: Tensor, codes: Tensor, k: int) -> float:
    """Top-k accuracy.

    Of scores that are equal up to rounding, as for identical features, the first counts as the highest.
    """
    own = logits.gather(1, codes[:, None])  # (n, 1)
    before = torch.arange(logits.shape[1], device=codes.device) < codes[:, None]  # (n, C)
    ahead = exceeds(logits, own) | (before & ~exceeds(own, logits))
    return float((ahead.sum(dim=1) < k).double().mean())
