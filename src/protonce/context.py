"""What a system may ask of the training it is part of: the other processes, random draws, fresh parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from protonce import randomness
from protonce.ranks import Ranks

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """Where in the training a step is."""

    epoch: int  # from 0
    step: int  # of the epoch, from 0
    steps: int  # of every epoch
    epochs: int

    @property
    def done(self) -> int:
        """Steps before this one, over all epochs."""
        return self.epoch * self.steps + self.step

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps


class Context:
    """The machinery of a training, so that a system's M-step reads like its paper.

    A batch of B images is shared by the processes: a rank computes its part, and losses, queues and banks see the
    whole through `gather`. A process by itself is rank 0 of 1.

    Args:
        seed: of every draw.
        batch_size: B, images of a step over all ranks.
        splits: sub-batches in which batch norm sees the B images; 1: it sees them at once, or there is none.
        ranks: the processes that train together; None: this one alone.
    """

    def __init__(self, seed: int = 0, batch_size: int = 1, splits: int = 1, ranks: Ranks | None = None) -> None:
        self.seed, self.batch_size, self.splits = seed, batch_size, splits
        self.ranks = ranks or Ranks()
        self.optimizer: torch.optim.Optimizer | None = None  # known once it has been built

    def generator(self, purpose: str, progress: Progress) -> torch.Generator:
        """A generator of draws that depend on the seed, the purpose and the step alone; alike on all ranks."""
        return randomness.generator(self.seed, purpose, progress.epoch, progress.step)

    def part(self, rows: Tensor) -> Tensor:
        """The part that this rank has in the rows (B, ...) of a batch; (b, ...)."""
        return self.ranks.part(rows)

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, (B, ...), in the order of the batch; differentiable.

        Args:
            rows: one for each image of this rank, (b, ...). Views are gathered one by one.
        """
        share = len(self.part(torch.empty(self.batch_size, 0)))
        if len(rows) != share:
            raise ValueError(f"gather takes one row for each of the {share} images of this rank, got {len(rows)}")
        if self.ranks.world_size == 1:
            return rows
        gathered: Tensor = _Gather.apply(rows, self.ranks, self.batch_size)
        return gathered

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all ranks. Differentiable."""
        if self.ranks.world_size == 1:
            return tensor
        total: Tensor = _Sum.apply(tensor, self.ranks)
        return total

    def on_first(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, on every rank; the others wait. For work that is not shared, such as k-means."""
        made = None
        if self.ranks.is_first:
            with self.ranks.all_local_threads():
                made = make()
        return self.ranks.broadcast_object(made)

    def renew(self, module: nn.Module, purpose: str, epoch: int) -> None:
        """Initialise a module's parameters anew, in place, and clear the optimizer's state of them.

        Every layer is initialised by its `reset_parameters`, from draws that depend on seed, purpose and epoch alone.

        Raises:
            ValueError: a parameter belongs to a layer that has no such method.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(randomness.key(self.seed, f"renewed {purpose}", epoch))
            layer: Any
            for layer in module.modules():
                if hasattr(layer, "reset_parameters"):
                    layer.reset_parameters()
                elif next(layer.parameters(recurse=False), None) is not None:
                    raise ValueError(f"{type(layer).__name__} has parameters and no reset_parameters; define it")
        if self.optimizer is not None:
            for parameter in module.parameters():
                self.optimizer.state.pop(parameter, None)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks, total: int) -> Tensor:
        ctx.ranks = ranks
        return ranks.gather(rows.contiguous(), total)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        return ctx.ranks.part(ctx.ranks.sum(upstream[0])), None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.sum(tensor)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.sum(upstream[0]), None
