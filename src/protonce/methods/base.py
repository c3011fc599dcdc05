"""The interface of a system.

A system is one module: the encoder, everything else that is trained, and its state as buffers, so that `state_dict` is
its checkpoint. `protonce.train(..., method=MySystem)` trains a custom system; see docs/new-system.md.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

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
RECORDED = (
    *("epoch", "lr", "loss", "seconds", "cpu_seconds", "cluster_seconds", "features_seconds"),
    *("clusters", "phi", "information", "cluster_entropy", "smallest_cluster", "largest_cluster", "agreement"),
    *("bound_before", "bound_after", "effective_rank", "bank_age", "bank_cosine", "scores"),
)
UNKNOWN = -1  # label of an image without one


@dataclass(frozen=True)
class Setup:
    """Arguments of a system's constructor."""

    encoder: Encoder  # f_θ, its weights drawn by the seed
    settings: Resolved
    options: Any  # the system's own `Options`, resolved
    context: Context
    n: int  # images
    classes: int = 0  # of the labels, for a system that needs them


@dataclass(frozen=True)
class Batch:
    """Views of b images: those of the B images of a step that this rank computes."""

    views: tuple[Tensor, ...]  # (b, ...) each, as `System.views` declares them
    index: Tensor  # (b,) which images they are
    progress: Progress
    labels: Tensor | None = None  # (b,) class or UNKNOWN; None: the system does not need them


class Term(NamedTuple):
    """A term of the loss, for logging."""

    loss: Tensor  # ()
    chance: Tensor | float | None = None  # the loss at chance level; None: it has no such level
    accuracy: Tensor | None = None  # (); None: it has none
    share: Tensor | None = None  # (), of the images that count; None: all count


class Features(Protocol):
    """Features of the plain views of all images, by the twin or, if there is none, the encoder; in eval mode.

    They are computed when they are asked for: without a call, there is no pass over the data. Both are collectives: do
    not call them within `context.on_first`.
    """

    def __call__(self) -> Tensor:
        """Embeddings V' = f_θ'(X), (n, d), L2-normalised."""
        ...

    def backbone(self) -> Tensor:
        """Pooled features of the backbone, (n, D), from the same pass."""
        ...


class System(nn.Module):
    """Base class of all systems. A subclass defines `m_step`, and overrides whatever else it needs.

    Attributes:
        Options: options of the system, a checked dataclass.
        terms: names of the loss terms that `m_step` returns, in the order in which they are shown.
        recipe: default recipe; empty: chosen by the data and the device.
        needs_labels: whether batches include labels; the data must have them then.
        trains: whether anything is learnt; if not, there is one epoch.
        moving_targets: whether E-steps replace the targets of the first term, so that its loss may rise again.
        query: the encoder f_θ, which the run folder keeps.
        momentum: its momentum twin f_θ', or None. Clusters are computed from its features, else from those of `query`.
    """

    Options: ClassVar[type[Options]] = Options
    terms: ClassVar[tuple[str, ...]] = ()
    recipe: ClassVar[str] = ""
    needs_labels: ClassVar[bool] = False
    trains: ClassVar[bool] = True
    moving_targets: ClassVar[bool] = False
    query: Encoder
    momentum: Encoder | None

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.settings, self.options, self.context, self.n = setup.settings, setup.options, setup.context, setup.n
        self.query = setup.encoder  # f_θ
        self.momentum = None

    @classmethod
    def check(cls) -> None:
        """Check that the class can be trained.

        Raises:
            UserError: it does not define `m_step`, or an option or a term has a reserved name.
        """
        if cls.m_step is System.m_step:
            raise UserError(f"{cls.__name__} does not define m_step")
        for kind, names, taken in (
            ("an option", cls.Options.names(), Settings.names()),
            ("a term", cls.terms, RECORDED),
        ):
            for name in names:
                if name in taken:
                    raise UserError(f"{cls.__name__} has {kind} with the reserved name {name}; rename it")

    @classmethod
    def views(cls, settings: Resolved, options: Any) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """Specifications of the random views of an image."""
        return TWO_VIEWS

    @property
    def steps(self) -> int:
        """Number of steps per epoch."""
        return self.n // self.settings.batch_size

    def e_step(self, epoch: int, features: Features) -> Any:  # noqa: ARG002
        """Compute what the M-steps of an epoch need, such as prototypes or pseudo-labels.

        Args:
            epoch: from 0. Systems that define `prototypes` get one more call after training, with epoch = epochs.
            features: `features()` computes V' = f_θ'(X) of all images, (n, d), and `features.backbone()` what the
                backbone pools, (n, D). If neither is called, there is no pass over the data. They are collectives: do
                not call them within `context.on_first`.

        Returns:
            None, or tensors, numbers and `Prototypes`, or lists, tuples and dicts of them. It is saved in checkpoints,
            and passed to `m_step` on the device.
        """
        return None

    def clustered(self, features: Features) -> Tensor:
        """Features of all images of which clusters are made, in E-steps and for the record, (n, d), L2-normalised."""
        return features()

    def signals(self, epoch: int, features: Features) -> dict[str, float]:  # noqa: ARG002
        """What else metrics.jsonl says at the end of an epoch, on all ranks alike."""
        return {}

    def prototypes(self, state: Any) -> list[Prototypes] | None:  # noqa: ARG002
        """Prototypes in the return value of `e_step`, one set for each number in the setting `clusters`.

        None: the system has no prototypes, and images are clustered for the record only.
        """
        return None

    def sampler(self, epoch: int, state: Any) -> Tensor:  # noqa: ARG002
        """Image indices of an epoch, (steps, B). Default: all images in random order, without an incomplete batch."""
        generator = randomness.generator(self.settings.seed, "order", epoch)
        size = self.settings.batch_size
        return torch.randperm(self.n, generator=generator)[: self.steps * size].view(self.steps, size)

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:
        """The loss of a batch, and its terms by name.

        The loss is a mean over the rows of this rank; or, by way of `context.gather` or `context.sum`, the loss of the
        whole batch, which is then the same on every rank.
        """
        raise NotImplementedError

    def after_backward(self, progress: Progress) -> None:
        """Hook after gradients are averaged over ranks and unscaled, before they are clipped."""

    def after_step(self, progress: Progress) -> None:
        """Hook after the optimizer's step, for instance to update the twin."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameter groups for the optimizer, each with `params` and optionally `lr_scale` and `weight_decay`."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def forward(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:
        """`m_step`, called through DDP."""
        return self.m_step(batch, state)
