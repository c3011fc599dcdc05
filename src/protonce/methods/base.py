"""The interface of a system: what training asks of it, and what a system may ask in return.

A system is one module: the encoder, whatever else is trained, and its state as buffers, so that a checkpoint needs no
list of them. `protonce.train(..., method=MySystem)` trains a user's own; docs/systems.md has an example.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from protonce import randomness
from protonce.config import Resolved, Settings
from protonce.context import Context, Progress
from protonce.data.views import TWO_VIEWS, ViewSpec
from protonce.encoder import Encoder
from protonce.errors import UserError
from protonce.methods.options import Options
from protonce.prototypes import Prototypes

# What metrics.jsonl says of every epoch, beside the terms of the loss.
RECORDED = ("epoch", "lr", "loss", "seconds", "clusters", "phi", "information", "agreement", "effective_rank")
UNKNOWN = -1  # label of an image without one


@dataclass(frozen=True)
class Setup:
    """What a system is built from."""

    encoder: Encoder  # f_θ, its weights drawn by the seed
    settings: Resolved
    options: Any  # the system's own `Options`, resolved
    context: Context
    n: int  # images
    classes: int = 0  # of the labels, for a system that needs them


@dataclass(frozen=True)
class Batch:
    """The views of some images. Of the B images of a step a rank has its b; a process by itself has all."""

    views: tuple[Tensor, ...]  # (b, ...) each, as `System.views` declares them
    index: Tensor  # (b,) which images they are
    progress: Progress
    labels: Tensor | None = None  # (b,) class or UNKNOWN; None: the system does not need them


class Term(NamedTuple):
    """A term of a loss, as it is logged."""

    loss: Tensor  # ()
    chance: Tensor | float | None = None  # what guessing would cost; None: the loss has no such level
    accuracy: Tensor | None = None  # () share of the rows that the term gets right; None: it has none


class System(nn.Module):
    """Base of all systems. A subclass defines `m_step`, and overrides what else it needs.

    Attributes:
        Options: its own options, a checked dataclass.
        terms: names of the terms of its loss that `m_step` returns, in the order in which they are shown; none: the
            loss alone is.
        recipe: name of its settings, where the caller names none; empty: chosen by the data and the device.
        needs_labels: whether batches carry labels; then the data must have them.
        reduction: "mean": the loss of a rank is a mean over its rows; "global": it is the loss of the whole batch, on
            every rank, by way of `context.gather` or `context.sum`.
        query: the encoder that a run keeps.
        momentum: its twin; None: there is none. Features for clusters come from it, else from `query`.
    """

    Options: ClassVar[type[Options]] = Options
    terms: ClassVar[tuple[str, ...]] = ()
    recipe: ClassVar[str] = ""
    needs_labels: ClassVar[bool] = False
    reduction: ClassVar[Literal["mean", "global"]] = "mean"
    query: Encoder
    momentum: Encoder | None

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.settings, self.options, self.context, self.n = setup.settings, setup.options, setup.context, setup.n
        self.query = setup.encoder  # f_θ
        self.momentum = None

    @classmethod
    def check(cls) -> None:
        """Refuse a class that cannot be trained.

        Raises:
            UserError: it defines no `m_step`, or a name that is taken.
        """
        if cls.m_step is System.m_step:
            raise UserError(f"{cls.__name__} defines no m_step, which every system needs")
        for kind, names, taken in (
            ("an option", cls.Options.names(), Settings.names()),
            ("a term", cls.terms, RECORDED),
        ):
            for name in names:
                if name in taken:
                    raise UserError(f"{cls.__name__} has {kind} {name}, a name that is taken; rename it")

    @classmethod
    def views(cls, settings: Resolved, options: Any) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """The random views of an image that a step needs."""
        return TWO_VIEWS

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.n // self.settings.batch_size

    def e_step(self, epoch: int, features: Callable[[], Tensor]) -> Any:  # noqa: ARG002
        """What the M-steps of an epoch need, or None.

        Args:
            epoch: from 0. A system that defines `prototypes` is asked once more at the end, with `epochs`.
            features: computes V' = f_θ'(X), (n, d), of all images; a system that does not call it needs no pass. All
                ranks compute it together, so it must not be called within `context.on_first`.

        Returns:
            tensors, numbers, `Prototypes`, or lists, tuples and dicts of them; a checkpoint keeps it, and `m_step` gets
            it on the device
        """
        return None

    def prototypes(self, state: Any) -> list[Prototypes] | None:  # noqa: ARG002
        """The clusters in what `e_step` returned, one set for each of the setting `clusters`.

        None: there are none, and some are made for the record.
        """
        return None

    def sampler(self, epoch: int, state: Any) -> Tensor:  # noqa: ARG002
        """The images of an epoch, (steps, B): by default all in random order, without the last incomplete batch."""
        generator = randomness.generator(self.settings.seed, "order", epoch)
        size = self.settings.batch_size
        return torch.randperm(self.n, generator=generator)[: self.steps * size].view(self.steps, size)

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:
        """The loss of a batch, and its terms by name."""
        raise NotImplementedError

    def after_backward(self, progress: Progress) -> None:
        """Called when gradients are averaged over ranks and unscaled, before they are clipped; may drop some."""

    def after_step(self, progress: Progress) -> None:
        """Called when the optimizer has made its step; here a twin follows."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What is trained: `params`, and where they differ from the settings `lr_scale` and `weight_decay`."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def forward(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:
        """`m_step`, through the module that averages gradients over ranks."""
        return self.m_step(batch, state)
