"""The training loop: E-step, M-step, log, save (algorithm 1)."""

import errno
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import Precision
from torch import Tensor, nn

from protonce import checkpoints, health, methods, randomness, run, weights
from protonce.checkpoints import Begun
from protonce.config import Resolved, Settings
from protonce.data.loader import Loader
from protonce.data.sources import Data
from protonce.data.views import ImageViews, Views
from protonce.devices import meet
from protonce.encoder import Encoder, build
from protonce.errors import UserError
from protonce.features import extract
from protonce.interruption import Interruption
from protonce.journal import CURE, Journal
from protonce.methods.pcl import PCL, Batch
from protonce.preparation import Plan, prepare
from protonce.progress import Reporter
from protonce.prototypes import Prototypes
from protonce.ranks import Ranks, said_once
from protonce.run import Run


def train(
    data: Data,
    out: str | Path,
    *,
    recipe: str | None = None,
    encoder: nn.Module | None = None,
    views: Views | str | None = None,
    resume: bool = False,
    quiet: bool = False,
    **settings: object,
) -> Run:
    """Learn an encoder and a hierarchy of prototypes from images without labels.

    Args:
        data: a folder, a .zip, `builtin`, an array of images, or an object with `len` and `load(i)`.
        out: the run folder; it must be new or empty, or hold the run to resume.
        recipe: named settings; None: chosen by the size of the data and the device.
        encoder: the user's own module, from views (B, ...) to (B, D), in place of a timm backbone.
        views: the setting of that name; or the user's own views, for data that are not images.
        resume: continue the run in `out` after its last whole checkpoint, or start it where there is none.
        quiet: print nothing.
        settings: any of `Settings`; they win over the recipe's.

    Raises:
        UserError: something the caller can mend. Nothing has been written then, unless training had begun.
    """
    if isinstance(views, str):
        settings, views = {**settings, "views": views}, None
    own = {"own_encoder": encoder is not None, "own_views": views is not None}
    ranks = Ranks()
    reporter = Reporter(quiet or not ranks.first)
    with said_once():
        plan = prepare(data, Path(out), recipe, resume, settings, own, reporter, ranks)
    fabric = meet(plan, ranks)
    loader = Loader(
        plan.source,
        views or ImageViews(plan.resolved),
        seed=plan.resolved.seed,
        workers=plan.resolved.workers,
        device=plan.resolved.device,
        replaced=lambda name, reason: _say_replaced(plan.out, Reporter(quiet), name, reason),
    )
    network = _encoder(plan.resolved, encoder, loader, own_views=views is not None)
    if plan.resolved.init and not checkpoints.exists(plan.out / "checkpoints"):
        reporter.say(f"starting from {weights.start_from(plan.resolved.init, network)}")
    with run.alone(plan.out) if ranks.first else nullcontext():
        if plan.previous is None and ranks.first:
            run.create(plan.out, plan.source, plan.recipe, plan.asked, plan.resolved, own)
            for i, reason in loader.lost.items():  # while the encoder was built
                _keep_replaced(plan.out, plan.source.names[i], reason)
        if plan.previous is None or not plan.previous.finished:
            with _own_generators(plan.resolved.device), _room(plan.out):
                _fit(fabric, ranks, plan, loader, network, reporter, own_backbone=encoder is not None)
        else:
            reporter.say(f"{plan.out} has already been trained for {plan.resolved.epochs} epochs")
    ranks.wait()
    return Run(plan.out, encoder, views)


@contextmanager
def _room(out: Path) -> Iterator[None]:
    """A full disk in one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk of {out} is full: make room, then go on with --resume; the last checkpoint is whole"
            ) from None
        raise


@contextmanager
def _own_generators(device: str) -> Iterator[None]:
    """The caller's random state is as it was afterwards, on the CPU and on the device."""
    mps = torch.mps.get_rng_state() if device == "mps" else None
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if device == "cuda" else []):
            yield
    finally:
        if mps is not None:
            torch.mps.set_rng_state(mps)


def _fit(
    fabric: Fabric,
    ranks: Ranks,
    plan: Plan,
    loader: Loader,
    network: Encoder,
    reporter: Reporter,
    own_backbone: bool,
) -> None:
    """Algorithm 1, from the last checkpoint to the last epoch."""
    out, settings = plan.out, plan.resolved
    method = methods.make(settings, network, n=len(loader)).to(fabric.device)
    method.ranks = ranks
    optimizer = torch.optim.SGD(
        method.query.parameters(),
        lr=settings.lr,
        momentum=settings.sgd_momentum,
        weight_decay=settings.weight_decay,
    )
    start, begun = _restore(out, method, optimizer, fabric.strategy.precision)
    ranks.copy_first(v for v in method.state_dict().values() if isinstance(v, Tensor))  # weights of one's own differ
    method.query, optimizer = fabric.setup(method.query, optimizer)
    method.autocast = fabric.autocast
    steps = len(loader) // settings.batch_size  # an epoch

    def save(epoch: int, begun: Begun | None) -> None:
        checkpoints.save(out / "checkpoints", epoch, method, optimizer, fabric.strategy.precision, begun)

    with reporter, Interruption(patient=ranks.size > 1) as interruption:
        journal = Journal(out, settings, steps, start, begun, save, interruption, reporter, ranks)
        journal.clustering(start)
        features = _momentum_features(method, loader, ranks) if begun is None else None  # V'
        for epoch in range(start, settings.epochs):
            if begun is None:  # else the E-step was made before the run was interrupted
                assert features is not None
                begun = _begin(out, method, epoch, features, ranks)
                if epoch == start:
                    _say_reduced(reporter, settings, begun.clusters)
            journal.stepping(begun)
            logs = _m_steps(fabric, ranks, method, optimizer, loader, epoch, begun, journal)

            stepped = time.perf_counter()
            journal.clustering(epoch + 1)
            features = _momentum_features(method, loader, ranks)  # V' at the end of this epoch, and for the next E-step
            if not features.isfinite().all():
                raise UserError(f"the encoder's weights are no numbers any more in epoch {epoch + 1}; {CURE}")
            if ranks.first:
                record = {
                    "epoch": epoch + 1,
                    "lr": learning_rate(settings, epoch),
                    **logs,
                    "clusters": [len(c.centroids) for c in begun.clusters],
                    "phi": [_percentiles(c.concentration) for c in begun.clusters] if begun.prototypes else [],
                    "cluster_seconds": begun.cluster_seconds,
                    "features_seconds": time.perf_counter() - stepped,
                }
                journal.epoch({**record, **begun.signals, **health.after_m_step(features, begun.clusters, logs)})
            begun = None

        assert features is not None
        final = method.cluster(settings.epochs, features)
    if ranks.first:
        run.write_prototypes(out, final)
        run.finish(out, method.query.state_dict(), method.momentum, own_backbone, settings)
        reporter.say(Run(out).health.words)


def _begin(out: Path, method: PCL, epoch: int, features: Tensor, ranks: Ranks) -> Begun:
    """The E-step of an epoch, kept in the run folder."""
    began = time.perf_counter()
    prototypes = method.e_step(epoch, lambda: features)
    # An epoch that trains without prototypes is clustered all the same, for the record.
    clusters = prototypes if prototypes is not None else method.cluster(epoch, features)
    seconds = time.perf_counter() - began
    signals: dict[str, Any] = {}
    if ranks.first:
        signals = health.after_e_step(features, clusters, run.read_assignments(out, epoch), method.settings.negatives)
        run.write_assignments(out, epoch + 1, clusters)
    return Begun(clusters, prototypes is not None, signals, seconds, seconds=time.perf_counter() - began)


def _m_steps(
    fabric: Fabric,
    ranks: Ranks,
    method: PCL,
    optimizer: Any,
    loader: Loader,
    epoch: int,
    begun: Begun,
    journal: Journal,
) -> dict[str, float]:
    """The M-step over the minibatches of an epoch that are left; the means of what all of them logged."""
    settings = method.settings
    method.train()
    state = [c.to(fabric.device) for c in begun.clusters] if begun.prototypes else None
    steps = len(loader) // settings.batch_size
    begun.sums = {name: value.to(fabric.device) for name, value in begun.sums.items()}
    for batch in _batches(loader, method, epoch, settings.batch_size, begun.step, ranks):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, epoch + batch.step / steps)
        # The encoder may draw for itself (dropout): from a state that depends on seed, epoch and step alone.
        torch.manual_seed(randomness.key(settings.seed, f"encoder {ranks.rank}", epoch, batch.step))
        loss, logs = method.m_step(batch, state)
        weight = len(batch.index) * ranks.size / settings.batch_size  # the gradients of all ranks are averaged
        optimizer.zero_grad()
        fabric.backward(loss * weight)  # θ = SGD(L_ProtoNCE, θ)
        optimizer.step()
        method.after_step()  # θ' = m θ' + (1 - m) θ
        ranks.average(logs.values(), weight)
        for name, value in logs.items():
            begun.sums[name] = begun.sums[name] + value if name in begun.sums else value
        begun.step = batch.step + 1
        journal.step(epoch, begun, logs, optimizer.param_groups[0]["lr"])
    return {name: float(value) / steps for name, value in begun.sums.items()}


def _batches(loader: Loader, method: PCL, epoch: int, batch_size: int, first: int, ranks: Ranks) -> Iterator[Batch]:
    """The batches of an epoch from step `first` on; of each this rank's part."""
    order = method.sampler(epoch)
    whole = order[: len(order) // batch_size * batch_size].view(-1, batch_size)[first:]  # (steps, B)
    parts = ranks.part(whole.T).T  # (steps, b)
    for step, samples in enumerate(loader.train(parts.flatten(), epoch, parts.shape[1]), start=first):
        query, key = loader.views.train(samples)
        yield Batch(query, key, samples.index.to(loader.device), epoch, step)


def _momentum_features(method: PCL, loader: Loader, ranks: Ranks) -> Tensor:
    """V' = f_θ'(X): momentum features of the plain views, the twin in eval mode, each by one rank; (n, d)."""

    def encode(x: Tensor) -> Tensor:
        with method.autocast():  # the encoder alone: views are as exact as in every other pass
            v_: Tensor = method.momentum(x)  # (B, d)
            return v_

    method.momentum.eval()
    part = extract(encode, loader, index=ranks.part(torch.arange(len(loader))))
    method.momentum.train()
    return ranks.gather(part.to(loader.device), len(loader)).cpu()


def learning_rate(settings: Settings, epoch: float) -> float:
    """The rate after so many epochs, by the cosine or by the steps at `drops`."""
    progress = epoch / settings.epochs
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1 + math.cos(math.pi * progress))
    return settings.lr * 0.1 ** sum(progress >= drop for drop in settings.drops)


def _restore(
    out: Path, method: PCL, optimizer: torch.optim.Optimizer, precision: Precision
) -> tuple[int, Begun | None]:
    """Load the last checkpoint, if there is one; the number of epochs that are done, and the one that has begun."""
    checkpoint = checkpoints.load(out / "checkpoints")
    if checkpoint is None:
        return 0, None
    method.load_state_dict(checkpoint["method"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    precision.load_state_dict(checkpoint["precision"])
    return int(checkpoint["epoch"]), checkpoint.get("begun")


def _encoder(settings: Resolved, own: nn.Module | None, loader: Loader, own_views: bool) -> Encoder:
    if own is None and not own_views:
        return build(settings)
    if own is None:
        raise UserError("views of your own need an encoder of your own; pass encoder=")
    samples = next(iter(loader.plain(2)))
    return build(settings, own.to(loader.device), loader.views.plain(samples))


def _say_reduced(reporter: Reporter, settings: Resolved, clusters: list[Prototypes]) -> None:
    for asked, found in zip(settings.clusters, clusters, strict=True):
        if len(found.centroids) < asked:
            reporter.say(f"note: {asked} clusters were asked for, the images give {len(found.centroids)}")


def _say_replaced(out: Path, reporter: Reporter, name: str, reason: str) -> None:
    reporter.say(f"note: {name} cannot be read any more ({reason}); another image takes its place")
    if out.exists():  # else it will be kept when the run folder is made
        _keep_replaced(out, name, reason)


def _keep_replaced(out: Path, name: str, reason: str) -> None:
    run.append_skipped(out, name, f"{reason}, since training began")


def _percentiles(phi: Tensor) -> list[float]:
    """Least, 10th, 50th, 90th percentile and greatest of φ."""
    marks = torch.quantile(phi.float().cpu(), torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0]))
    return [float(v) for v in marks]
