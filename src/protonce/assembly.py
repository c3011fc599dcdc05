"""Build the parts of a training: loader, system and optimizer, on one device or on several ranks."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from protonce import checkpoints, randomness, weights
from protonce.adaptation import Start, freeze, start_head, trained_norms
from protonce.checkpoints import Epoch
from protonce.config import Resolved
from protonce.context import Context
from protonce.data.loader import Loader
from protonce.data.views import ImageViews, Views
from protonce.devices import autocast, launch
from protonce.encoder import Encoder, batch_norms, build
from protonce.errors import UserError
from protonce.features import extract
from protonce.methods.base import UNKNOWN, Setup, System
from protonce.optimizers import build_optimizer
from protonce.preparation import MAY_CHANGE, Plan
from protonce.progress import Reporter
from protonce.ranks import Ranks


@dataclass
class Training:
    """The parts of a training."""

    plan: Plan
    ranks: Ranks
    fabric: Fabric
    loader: Loader
    system: System
    m_step: Callable[..., Any]  # the system's, through which gradients are averaged over ranks
    optimizer: Any
    labels: Tensor | None  # (n,) for a system that needs them
    parts: dict[str, Any]  # what a checkpoint holds, by name
    start: int  # epochs that are done
    begun: Epoch | None  # the epoch that has begun, where a run is resumed within one
    beginning: Start | None = None  # weights that are averaged with those at the end

    @property
    def settings(self) -> Resolved:
        """Common settings."""
        return self.plan.settings

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.fabric.device

    @cached_property
    def statistics(self) -> list[Tensor]:
        """Running means and variances of every batch norm in training mode; none if nothing is trained."""
        norms = [norm for norm in batch_norms(self.system) if norm.training] if self.system.trains else []
        return [s for norm in norms for s in (norm.running_mean, norm.running_var) if s is not None]

    def weight(self, rows: int) -> float:
        """Weight of this rank's loss, so that the mean over ranks is the loss of the batch; of b rows.

        Weights have mean 1, so that a loss which is the same on all ranks is not changed by them.
        """
        return rows * self.ranks.world_size / self.settings.batch_size

    def average_with_start(self) -> None:
        """θ = (1 - a) θ + a θ_start, for both encoders."""
        assert self.beginning is not None
        for encoder in (self.system.query, self.system.momentum):
            if encoder is not None:
                self.beginning.average_into(encoder)

    def save(self, done: int, epoch: Epoch | None) -> None:
        """Keep a checkpoint after `done` epochs, and within the one that has begun."""
        checkpoints.save(self.plan.out, done, self.parts, epoch)


def assemble(
    plan: Plan,
    ranks: Ranks,
    encoder: nn.Module | None,
    views: Views | None,
    reporter: Reporter,
    lost: Callable[[str, str], None],
) -> Training:
    """Build the parts, and restore the last checkpoint if there is one.

    Args:
        plan: of the training.
        ranks: the processes that train together.
        encoder: the user's own backbone; None: the settings'.
        views: the user's own views; None: those that the system declares.
        reporter: prints which pretrained weights were loaded.
        lost: called with the name of an image that can no longer be read, and the reason.
    """
    settings = plan.settings
    fabric = launch(settings, ranks)
    ranks.check_equal(_shared(plan))
    specs = plan.entry.system.views(settings, plan.options)
    loader = Loader(
        plan.source,
        views or ImageViews(settings, specs),
        seed=settings.seed,
        workers=settings.workers,
        device=settings.device,
        replaced=lost,
    )
    network = _encoder(settings, encoder, loader, own_views=views is not None)
    freeze(network, settings.trained_stages, settings.batch_norm)
    if not checkpoints.exists(plan.out):
        if settings.init:
            reporter.say(f"starting from {weights.start_from(settings.init, network)}")
        if settings.head_init == "pca":
            start_head(network, loader, ranks, settings.seed)
    labels, classes = _labels(plan)
    context = build_context(settings, network, ranks)
    setup = Setup(network, settings, plan.options, context, len(loader), classes)
    with torch.random.fork_rng(devices=[]):  # a system may draw weights of its own
        torch.manual_seed(randomness.key(settings.seed, "system"))
        system = plan.entry.system(setup).to(fabric.device)
    context.optimizer = _optimizer(system)
    # `precision` has the scale of half-precision losses.
    parts = {"system": system, "optimizer": context.optimizer, "precision": fabric.strategy.precision}
    beginning = Start(network, settings.start_share) if settings.start_share else None
    if beginning is not None:
        parts["start"] = beginning
    start, begun = checkpoints.restore(plan.out, parts, fabric.device)
    ranks.broadcast_(v for v in system.state_dict().values() if isinstance(v, Tensor))  # a user's own may differ
    m_step, optimizer = fabric.setup(system, context.optimizer)
    return Training(plan, ranks, fabric, loader, system, m_step, optimizer, labels, parts, start, begun, beginning)


def _shared(plan: Plan) -> dict[str, object]:
    """What must be the same on all ranks."""
    alike = {name: value for name, value in plan.config["settings"].items() if name not in MAY_CHANGE}
    return {"the data's fingerprint": plan.source.fingerprint, "RUN": str(plan.out), **alike}


def _encoder(settings: Resolved, own: nn.Module | None, loader: Loader, own_views: bool) -> Encoder:
    if own is None and own_views:
        raise UserError("views of your own need an encoder of your own; pass encoder=")
    if own is None:
        return build(settings)
    samples = next(iter(loader.plain(2)))
    return build(settings, own.to(loader.device), loader.views.plain(samples))


def build_context(settings: Resolved, network: Encoder, ranks: Ranks) -> Context:
    """The context of a system; and how its encoder computes: its precision, and the parts that batch norm sees."""
    splits = max(settings.bn_splits, ranks.world_size) if trained_norms(network) else 1  # over all ranks
    network.splits = max(splits // ranks.world_size, 1)
    network.autocast = autocast(settings.device, settings.precision)
    return Context(settings.seed, settings.batch_size, splits, ranks)


def _optimizer(system: System) -> torch.optim.Optimizer:
    """Over the parameters that the system trains; all others are frozen, so that no rank waits for their gradients."""
    groups = system.parameter_groups()
    trained = {id(p) for group in groups for p in group["params"]}
    for parameter in system.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    return build_optimizer(groups, system.settings)


def _labels(plan: Plan) -> tuple[Tensor | None, int]:
    """The class of each image, or UNKNOWN, (n,), and the number of classes, for a system that needs labels."""
    if not plan.entry.system.needs_labels:
        return None, 0
    given = np.array(plan.source.labels)
    classes = np.unique(given[given != ""])
    codes = np.where(given == "", UNKNOWN, np.searchsorted(classes, given))
    return torch.from_numpy(codes), len(classes)


class MomentumFeatures:
    """V' = f_θ'(X), and the pooled features below it; memoised: computed on the first call, and again after `forget`.

    Of the plain views, by the twin in eval mode, or by the encoder if there is no twin. Ranks share the work, so all of
    them must call it.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        self._embeddings: Tensor | None = None
        self._pooled: Tensor | None = None
        self._needs_pooled = False  # once they were asked for, one pass gives both
        self._seconds = 0.0

    def __call__(self) -> Tensor:
        """V', (n, d) on the CPU."""
        if self._embeddings is None:
            self._compute()
        assert self._embeddings is not None
        return self._embeddings

    def backbone(self) -> Tensor:
        """Pooled features of the backbone, (n, D) on the CPU; not normalised."""
        if self._pooled is None:
            self._needs_pooled = True
            self._compute()
        assert self._pooled is not None
        return self._pooled

    def forget(self) -> None:
        """θ' has changed."""
        self._embeddings = self._pooled = None

    def take_seconds(self) -> float:
        """Seconds spent computing since the last call."""
        taken, self._seconds = self._seconds, 0.0
        return taken

    def _compute(self) -> None:
        began = time.monotonic()
        system, loader, ranks = self.training.system, self.training.loader, self.training.ranks
        encoder = system.momentum or system.query

        def encode(x: Tensor) -> Tensor:
            pooled = encoder.features(x)  # (b, D)
            v_ = encoder.embed(pooled)  # (b, d)
            return torch.cat([v_, pooled], dim=1) if self._needs_pooled else v_

        encoder.eval()
        part = extract(encode, loader, index=ranks.part(torch.arange(len(loader))))
        encoder.train()
        # The device never holds more than n x d numbers.
        blocks = (block.contiguous() for block in part.split(encoder.dim, dim=1))
        self._embeddings, *pooled = [ranks.gather(b.to(loader.device), len(loader)).cpu() for b in blocks]
        self._pooled = torch.cat(pooled, dim=1) if pooled else None
        self._seconds += time.monotonic() - began
