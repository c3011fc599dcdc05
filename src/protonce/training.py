"""The training loop: E-step, M-step, log, save (algorithm 1)."""

import importlib.util
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import Precision
from torch import Tensor, nn

from protonce import checkpoints, methods, randomness, run, weights
from protonce.auto import DataSize, Machine, choose_recipe, resolve
from protonce.config import Resolved, Settings, read_recipe
from protonce.data.loader import Loader
from protonce.data.sources import Data, Source, open_source
from protonce.data.views import ImageViews, Views
from protonce.encoder import Encoder, build
from protonce.errors import UserError
from protonce.features import extract
from protonce.methods.pcl import PCL, Batch
from protonce.progress import Reporter
from protonce.prototypes import Prototypes
from protonce.run import Run

SHOW_EVERY = 10  # steps between two looks at the losses, each of which waits for the device


def train(
    data: Data,
    out: str | Path,
    *,
    recipe: str | None = None,
    encoder: nn.Module | None = None,
    views: Views | None = None,
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
        views: the user's own views, for data that are not images.
        resume: continue the run in `out` after its last whole checkpoint, or start it where there is none.
        quiet: print nothing.
        settings: any of `Settings`; they win over the recipe's.

    Raises:
        UserError: something the caller can mend. Nothing has been written then.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("protonce trains on one device as yet; start it without torchrun")
    out = Path(out)
    previous = _previous(out, resume)
    if previous is not None:
        before = previous.config["recipe"]
        if recipe not in (None, before):
            raise UserError(f"{out} was begun with recipe {before}, not {recipe}; resume it with the same")
        recipe = before
        settings = {**previous.config["asked"], **settings}
    # Checked before the data is looked at; a recipe that is yet to be chosen says nothing of what is needed here.
    given = Settings.from_mapping({**(read_recipe(recipe) if recipe else {}), **settings}, "protonce")
    reporter = Reporter(quiet)
    if isinstance(data, str | Path) and data != "builtin":
        reporter.say(f"looking at the images of {data}")
    source = open_source(data, "train", given.seed, given.limit)
    device = _device(given.device)

    why = ""
    if recipe is None:
        recipe, why = choose_recipe(DataSize(len(source), source.side), device)
    # Weights to start from bring their architecture along: it wins over the recipe's, and an option over both.
    brought = weights.architecture(given.init)
    asked = Settings.from_mapping({**read_recipe(recipe), **brought, **settings}, "protonce")
    if source.sizes is None and views is None:
        raise UserError("the data set gives no images; pass views= and encoder= that know what to do with its items")
    resolved = resolve(asked, DataSize(len(source), source.side), _machine(device))
    if resolved.device == "cpu" and resolved.precision == "16":
        raise UserError("precision 16 needs a GPU; on a CPU choose 32")

    own = {"own_encoder": encoder is not None, "own_views": views is not None}
    if previous is not None:
        _check_same(previous, source, resolved, own)
    _introduce(reporter, source, recipe, why, resolved, asked)
    loader = Loader(
        source,
        views or ImageViews(resolved),
        seed=resolved.seed,
        workers=resolved.workers,
        device=resolved.device,
    )
    network = _encoder(resolved, encoder, loader)
    if resolved.init and run.checkpoint(out) is None:
        reporter.say(f"starting from {weights.start_from(resolved.init, network)}")
    if previous is None:
        run.create(out, source, recipe, asked, resolved, own)
    if previous is None or not previous.finished:
        devices = [torch.cuda.current_device()] if resolved.device == "cuda" else []
        with torch.random.fork_rng(devices):  # the caller's generators are left alone
            _fit(out, resolved, loader, network, reporter, own_backbone=encoder is not None)
    else:
        reporter.say(f"{out} has already been trained for {resolved.epochs} epochs")
    return Run(out, encoder, views)


def _fit(
    out: Path, settings: Resolved, loader: Loader, network: Encoder, reporter: Reporter, own_backbone: bool
) -> None:
    """Algorithm 1, from the last checkpoint to the last epoch."""
    fabric = Fabric(accelerator=settings.device, devices=1, precision=PRECISIONS[settings.precision])  # type: ignore[arg-type]
    method = methods.make(settings, network, n=len(loader)).to(fabric.device)
    optimizer = torch.optim.SGD(
        method.query.parameters(),
        lr=settings.lr,
        momentum=settings.sgd_momentum,
        weight_decay=settings.weight_decay,
    )
    start = _restore(out, method, optimizer, fabric.strategy.precision)
    run.cut_metrics(out, start)
    method.query, optimizer = fabric.setup(method.query, optimizer)
    method.autocast = fabric.autocast
    reporter.begin(settings.epochs, len(loader) // settings.batch_size, start)

    with reporter:
        for epoch in range(start, settings.epochs):
            began = time.perf_counter()
            features = _once(lambda: _momentum_features(method, loader))
            reporter.clustering(epoch)
            prototypes = method.e_step(epoch, features)
            e_seconds = time.perf_counter() - began
            # An epoch that trains without prototypes is clustered all the same, for the record.
            clusters = prototypes if prototypes is not None else method.cluster(epoch, features())
            run.write_assignments(out, epoch + 1, clusters)
            record_seconds = time.perf_counter() - began - e_seconds
            if epoch == start:
                _say_reduced(reporter, settings, clusters)
            reporter.clustered()

            logs = _m_steps(fabric, method, optimizer, loader, epoch, prototypes, reporter)
            if not math.isfinite(logs["loss"]):
                raise UserError(
                    f"the loss of epoch {epoch + 1} is {logs['loss']}; try a smaller lr. The epochs before it are kept"
                )
            record = {
                "epoch": epoch + 1,
                "lr": learning_rate(settings, epoch),
                **logs,
                "clusters": [len(c.centroids) for c in clusters],
                "phi": [_percentiles(c.concentration) for c in prototypes or []],
                "e_step_seconds": round(e_seconds, 3),
                "record_seconds": round(record_seconds, 3),
                "seconds": round(time.perf_counter() - began, 3),
            }
            run.append_metrics(out, record)
            checkpoints.save(out / "checkpoints", epoch + 1, method, optimizer, fabric.strategy.precision)
            reporter.epoch(record)

        reporter.clustering(settings.epochs - 1)
        final = method.cluster(settings.epochs, _momentum_features(method, loader))
    run.write_prototypes(out, final)
    run.finish(out, method.query.state_dict(), method.momentum, own_backbone, settings)


def _m_steps(
    fabric: Fabric,
    method: PCL,
    optimizer: Any,
    loader: Loader,
    epoch: int,
    prototypes: list[Prototypes] | None,
    reporter: Reporter,
) -> dict[str, float]:
    """The M-step over all minibatches of an epoch; the means of what they logged."""
    settings = method.settings
    method.train()
    state = None if prototypes is None else [c.to(fabric.device) for c in prototypes]
    steps = len(loader) // settings.batch_size
    sums: dict[str, Tensor] = {}
    for step, batch in enumerate(_batches(loader, method, epoch, settings.batch_size)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, epoch + step / steps)
        # The encoder may draw for itself (dropout): from a state that depends on seed, epoch and step alone.
        torch.manual_seed(randomness.key(settings.seed, "encoder", epoch, step))
        loss, logs = method.m_step(batch, state)
        optimizer.zero_grad()
        fabric.backward(loss)  # θ = SGD(L_ProtoNCE, θ)
        optimizer.step()
        method.after_step()  # θ' = m θ' + (1 - m) θ
        for name, value in logs.items():
            sums[name] = sums.get(name, 0) + value
        show = step % SHOW_EVERY == 0
        reporter.step(epoch, {name: float(value) for name, value in logs.items()} if show else None)
    return {name: round(float(value) / steps, 6) for name, value in sums.items()}


def _batches(loader: Loader, method: PCL, epoch: int, batch_size: int) -> Iterator[Batch]:
    for step, samples in enumerate(loader.train(method.sampler(epoch), epoch, batch_size)):
        query, key = loader.views.train(samples)
        yield Batch(query, key, samples.index.to(loader.device), epoch, step)


def _momentum_features(method: PCL, loader: Loader) -> Tensor:
    """V' = f_θ'(X): momentum features of the plain views, the twin in eval mode; (n, d)."""
    method.momentum.eval()
    with method.autocast():
        features = extract(method.momentum, loader)
    method.momentum.train()
    return features


def learning_rate(settings: Settings, epoch: float) -> float:
    """The rate after so many epochs, by the cosine or by the steps at `drops`."""
    progress = epoch / settings.epochs
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1 + math.cos(math.pi * progress))
    return settings.lr * 0.1 ** sum(progress >= drop for drop in settings.drops)


PRECISIONS = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}


def _once(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """`compute` that runs at most once, when first asked."""
    kept: list[Tensor] = []

    def call() -> Tensor:
        if not kept:
            kept.append(compute())
        return kept[0]

    return call


def _restore(out: Path, method: PCL, optimizer: torch.optim.Optimizer, precision: Precision) -> int:
    """Load the last checkpoint, if there is one; the number of epochs that are done."""
    checkpoint = run.checkpoint(out)
    if checkpoint is None:
        return 0
    method.load_state_dict(checkpoint["method"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    precision.load_state_dict(checkpoint["precision"])
    return int(checkpoint["epoch"])


def _previous(out: Path, resume: bool) -> Run | None:
    """The run in the folder that is to be resumed, None for a new one."""
    if out.is_file():
        raise UserError(f"{out} is a file; name a new folder for the run")
    if not out.exists() or not any(out.iterdir()):
        return None
    if not resume:
        raise UserError(f"{out} is not empty; choose a new folder, or --resume to continue the run in it")
    if run.hardly_begun(out):
        return None
    return Run(out)


def _check_same(previous: Run, source: Source, resolved: Resolved, own: dict[str, bool]) -> None:
    """A run continues with the data and the settings it began with, or it would be another run."""
    before = previous.config["data"]
    for name, is_own in own.items():
        if before[name] != is_own:
            what = f"{'without' if is_own else 'with'} {name.removeprefix('own_')}="
            raise UserError(f"{previous.path} was begun {what}; resume it the same way")
    if before["fingerprint"] != source.fingerprint:
        raise UserError(
            f"{previous.path} was trained on {before['images']} images of {before['source']}, and these "
            f"{len(source)} of {source.spec} are not the same; resume it on the data it began with"
        )
    for name in Settings.names():
        if name == "workers":
            continue
        old, new = getattr(previous.settings, name), getattr(resolved, name)
        if old != new:
            raise UserError(
                f"{previous.path} was begun with {name} {old}, not {new}; resume it with the same, or start a new run"
            )


def _encoder(settings: Resolved, own: nn.Module | None, loader: Loader) -> Encoder:
    if own is None and isinstance(loader.views, ImageViews):
        return build(settings)
    if own is None:
        raise UserError("views of your own need an encoder of your own; pass encoder=")
    samples = next(iter(loader.plain(2)))
    return build(settings, own.to(loader.device), loader.views.plain(samples))


def _device(asked: str) -> str:
    """The device that is asked for, or the best there is."""
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if has[name])
    if not has[asked]:
        raise UserError(f"device {asked} is not there; choose cpu or auto")
    return asked


def _machine(device: str) -> Machine:
    return Machine(
        device=device,
        bfloat16=device == "cuda" and torch.cuda.is_bf16_supported(),
        faiss=importlib.util.find_spec("faiss") is not None,
        cores=os.cpu_count() or 1,
    )


def _introduce(reporter: Reporter, source: Source, recipe: str, why: str, resolved: Resolved, asked: Settings) -> None:
    """Say what is about to happen, and what `auto` chose."""
    reporter.say(
        f"{len(source):,} images of {source.spec}" + (f", {len(source.skipped)} skipped" if source.skipped else "")
    )
    reporter.say(f"recipe {recipe}" + (f" ({why})" if why else ""))
    chosen = [f"{name} {getattr(resolved, name)}" for name in Settings.names() if getattr(asked, name) == "auto"]
    if chosen:
        reporter.say(f"auto chose {', '.join(chosen)}")
    if resolved.method == "pcl" and resolved.terms != "instance" and resolved.warmup_epochs >= resolved.epochs:
        reporter.say(
            f"note: warm-up takes {resolved.warmup_epochs} of {resolved.epochs} epochs, so prototypes are never used"
        )


def _say_reduced(reporter: Reporter, settings: Resolved, clusters: list[Prototypes]) -> None:
    for asked, found in zip(settings.clusters, clusters, strict=True):
        if len(found.centroids) < asked:
            reporter.say(f"note: {asked} clusters were asked for, the images give {len(found.centroids)}")


def _percentiles(phi: Tensor) -> list[float]:
    """Least, 10th, 50th, 90th percentile and greatest of φ."""
    marks = torch.quantile(phi.float().cpu(), torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0]))
    return [round(float(v), 6) for v in marks]
