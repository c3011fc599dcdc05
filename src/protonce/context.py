"""What a system needs of the training: collectives, random generators, re-initialisation; and where the training is."""

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
    """Position of a step in the training."""

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
    """What a system needs of the training: collectives, random generators, re-initialisation.

    Ranks share each batch of B images: a rank computes its b images, and losses, queues and banks get all of them by
    `gather`.

    Args:
        seed: random seed.
        batch_size: B, number of images per step over all ranks.
        splits: number of sub-batches of the B images for batch norm.
        ranks: the processes of the training; None: this process only.
    """

    def __init__(self, seed: int = 0, batch_size: int = 1, splits: int = 1, ranks: Ranks | None = None) -> None:
        self.seed, self.batch_size, self.splits = seed, batch_size, splits
        self.ranks = ranks or Ranks()
        self.optimizer: torch.optim.Optimizer | None = None  # known once it has been built

    def generator(self, purpose: str, progress: Progress) -> torch.Generator:
        """Random generator that depends on seed, purpose and step only; the same on all ranks."""
        return randomness.generator(self.seed, purpose, progress.epoch, progress.step)

    def part(self, rows: Tensor) -> Tensor:
        """Rows of this rank, (b, ...), out of those of the batch, (B, ...)."""
        return self.ranks.part(rows)

    @property
    def first_row(self) -> int:
        """Place in the batch of the first row of this rank."""
        shortest, longer = divmod(self.batch_size, self.ranks.world_size)  # the first `longer` ranks have one row more
        return shortest * self.ranks.rank + min(self.ranks.rank, longer)

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
        """Compute something on rank 0, such as k-means, and broadcast it to all ranks."""
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
