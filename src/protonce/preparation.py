"""Resolve data, settings and device before training starts, and whether a run is continued."""

import dataclasses
import importlib.util
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from protonce import capacity, checkpoints, weights
from protonce.auto import DataSize, choose_recipe, resolve
from protonce.config import Resolved, Settings, read_recipe
from protonce.data.sources import Data, Source, open_source
from protonce.devices import find_device, look_at_machine
from protonce.encoder import fixed_size
from protonce.errors import UserError
from protonce.methods import registry
from protonce.methods.base import System
from protonce.methods.options import Entry, Options
from protonce.progress import Reporter
from protonce.ranks import Ranks
from protonce.run import Run
from protonce.run.checking import check_run
from protonce.run.writing import has_no_checkpoint

FEW_PHOTOS, SMALL_SIDE = 5_000, 64  # images; their shorter side in pixels
# Settings that change nothing of what is learnt, so that a resumed run may have others.
MAY_CHANGE = ("workers", "checkpoint_minutes", "snapshot_every", "record_every")


@dataclass(frozen=True)
class Request:
    """What the caller of `protonce.train` asked for."""

    data: Data
    out: Path
    recipe: str | None = None
    method: str | type[System] | None = None  # None: the settings', or the recipe's
    resume: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)  # common settings and options of the system
    own_encoder: bool = False
    own_views: bool = False

    @property
    def own(self) -> dict[str, bool]:
        """What the caller brought along, which a run folder cannot hold."""
        own_system = self.method is not None and registry.find(self.method).is_own
        return {"own_encoder": self.own_encoder, "own_views": self.own_views, "own_system": own_system}


@dataclass(frozen=True)
class Plan:
    """A training that may start: every mistake that can be seen beforehand has been."""

    out: Path
    source: Source
    recipe: str
    entry: Entry
    asked: dict[str, Any]  # settings and options, as they were asked for
    settings: Resolved
    options: Options
    own: dict[str, bool]
    previous: Run | None  # the run in `out` that is continued

    @property
    def config(self) -> dict[str, Any]:
        """What config.yaml says of the training."""
        system = self.entry.system
        return {
            "recipe": self.recipe,
            "system": {
                "title": self.entry.title,
                "terms": list(system.terms),
                "labels": system.needs_labels,
                "trains": system.trains,
                "moving_targets": system.moving_targets,
            },
            "pretrained": is_pretrained(self.settings.init),
            "asked": self.asked,
            "settings": {**dataclasses.asdict(self.settings), **dataclasses.asdict(self.options)},
        }


def prepare(request: Request, reporter: Reporter, ranks: Ranks) -> Plan:
    """Open the data and resolve the settings.

    Raises:
        UserError: something the caller can mend. Nothing has been written.
    """
    previous = _previous(request.out, request.resume)
    recipe, entry, given = _asked(request, previous)
    # Checked before the data is looked at; a recipe that is yet to be chosen says nothing of what is needed here.
    early, _ = _split({**(registry.part_recipe(read_recipe(recipe), entry) if recipe else {}), **given}, entry)
    device = find_device(early.device)
    source = _open(request, early, previous, reporter)
    if source.labels is None and entry.system.needs_labels:
        raise UserError(f"{entry.title} needs labels, and {source.spec} has none: put each class into its own folder")
    size, why = DataSize(len(source), source.side), ""
    if recipe is None:
        recipe, why = choose_recipe(size, device, is_pretrained(early.init) and not request.own_encoder)
    theirs = registry.part_recipe(read_recipe(recipe), entry)
    if given.get("head", "linear") != "linear":  # which starts from random weights, whatever the recipe's head does
        theirs.pop("head_init", None)
    values = {**theirs, **_brought(early.init, {**theirs, **given}), **given}
    if not entry.system.trains:
        values = {**values, "epochs": 1}
    asked, options = _split(values, entry)
    settings = resolve(asked, size, look_at_machine(device, ranks))
    flat = {**dataclasses.asdict(asked), **dataclasses.asdict(options)}
    resolved = options.resolve(settings, len(source))
    plan = Plan(request.out, source, recipe, entry, flat, settings, resolved, request.own, previous)
    _check(plan, ranks)
    _introduce(reporter, plan, why)
    return plan


def _asked(request: Request, previous: Run | None) -> tuple[str | None, Entry, dict[str, Any]]:
    """The recipe, the system, and the settings that were named; of a run that is continued those it began with."""
    recipe, given = request.recipe, dict(request.settings)
    in_settings = given.pop("method", None)
    named = in_settings if request.method is None else request.method
    if recipe is not None:
        read_recipe(recipe)
    if previous is not None:
        before = previous.config["recipe"]
        if recipe not in (None, before):
            raise UserError(f"{request.out} was started with recipe {before}, not {recipe}; resume it with the same")
        _check_own(previous, request.own)
        begun = previous.settings.method
        if named is not None and registry.find(named).name != begun:
            name = registry.find(named).name
            raise UserError(f"{request.out} was started with method {begun}, not {name}; resume it with the same")
        recipe, named = before, named or begun
        given = {**previous.config["asked"], **_decided(previous), **given}
    if named is None:
        named = str(read_recipe(recipe).get("method", Settings().method)) if recipe else Settings().method
    entry = registry.find(named)
    return recipe or entry.recipe or None, entry, {**given, "method": entry.name}


def _split(values: Mapping[str, Any], entry: Entry) -> tuple[Settings, Options]:
    """Common settings and the options of a system, checked."""
    common, options = registry.part(values, entry, "protonce")
    asked = Settings(**common)
    if asked.init and weights.exists(Path(asked.init)):  # found again from any working directory
        asked = dataclasses.replace(asked, init=str(Path(asked.init).resolve()))
    return asked, entry.options(**options)


def _open(request: Request, settings: Settings, previous: Run | None, reporter: Reporter) -> Source:
    """The training images."""
    data = request.data
    if isinstance(data, str | Path) and data != "builtin":
        reporter.say(f"checking the images of {data}")
    known = previous.images[0] if previous is not None else None
    source = open_source(data, "train", settings.seed, settings.limit, known)
    if source.sizes is None and not request.own_views:
        raise UserError("the items of the data set are not images; pass views= and encoder= for them")
    return source


def is_pretrained(init: str) -> bool:
    """Whether weights have learnt from other images: not those of a run that was itself trained from random ones."""
    if init in ("", weights.UNTRAINED):
        return False
    path = Path(init)
    folder = path.parent if path.name == "encoder.safetensors" else path
    if not weights.exists(folder / "encoder.json"):
        return True  # a file of another program, or timm:NAME
    try:
        config = Run(folder).config
    except UserError:  # which whoever reads the weights will explain
        return True
    before = config.get("imported", "") not in ("", weights.UNTRAINED) or bool(config["settings"].get("init"))
    return bool(config.get("pretrained", before))  # runs of earlier versions do not say it


def _brought(init: str, values: Mapping[str, object]) -> dict[str, object]:
    """Weights to start from bring their architecture along: it wins over the recipe's, and an option over both.

    But for a head that starts from PCA, which is another one.
    """
    brought = weights.architecture(init)
    if values.get("head_init") == "pca":
        brought = {name: value for name, value in brought.items() if name not in ("head", "dim")}
    if fixed_size(str(brought.get("backbone", ""))) is None:  # then the size of the images is these images' matter
        brought = {name: value for name, value in brought.items() if name not in ("image_size", "plain_resize")}
    return brought


def _check(plan: Plan, ranks: Ranks) -> None:
    """What only the resolved settings tell.

    Raises:
        UserError: they cannot be trained with, on this machine, or in this run folder.
    """
    settings = plan.settings
    if settings.head == "none":
        raise UserError("head is none, which is for imported encoders; train with linear or mlp")
    if settings.head_init == "pca" and settings.head != "linear":
        raise UserError("head_init pca needs a head that is linear; set head to linear, or head_init to random")
    if settings.device == "cpu" and settings.precision == "16":
        raise UserError("precision 16 needs a GPU; on a CPU choose 32")
    if settings.kmeans_engine == "faiss" and importlib.util.find_spec("faiss") is None:
        raise UserError("kmeans_engine is faiss, which is not installed; choose torch")
    if ranks.world_size > 1:
        _check_ranks(ranks, settings)
    if plan.previous is not None:
        _check_same(plan.previous, plan)
    _check_memory(plan, ranks)


def _check_memory(plan: Plan, ranks: Ranks) -> None:
    """Of a system of the user's own nobody knows what it keeps and trains beside the encoder's weights."""
    known = {} if plan.entry.is_own else dataclasses.asdict(plan.options)
    capacity.check_training(
        plan.settings,
        capacity.Trained(
            n=len(plan.source),
            queue=known.get("queue", 0),
            has_twin="twin_momentum" in known,
            every_parameter=not plan.entry.is_own and plan.settings.trained_stages == 0,
            own_encoder=plan.own["own_encoder"],
            ranks=ranks.world_size,
            local_ranks=ranks.local_world_size,
        ),
    )


def _previous(out: Path, resume: bool) -> Run | None:
    """The run in the folder that is to be resumed, None for a new one."""
    if out.is_file():
        raise UserError(f"{out} is a file; name a new folder for the run")
    if not out.exists() or all(p.name.startswith(".") for p in out.iterdir()):
        return None
    if not resume:
        raise UserError(f"{out} is not empty; choose a new folder, or --resume to continue the run in it")
    if has_no_checkpoint(out):
        return None
    previous = Run(out)
    if previous.imported:
        raise UserError(f"{out} holds an imported encoder; train a new run from it with --init {shlex.quote(str(out))}")
    if previous.finished or checkpoints.exists(out):  # else it starts at its beginning
        _check_intact(out)
    return previous


def _check_intact(out: Path) -> None:
    """What a run has recorded so far is part of its result."""
    damaged = check_run(out).damaged
    if damaged:
        raise UserError(next(iter(damaged.values())))


def _decided(previous: Run) -> dict[str, object]:
    """What `auto` chose when the run began, for the data: another version may choose otherwise. Not for the machine."""
    machine = ("device", "precision", "kmeans_engine", "workers")
    config = previous.config
    return {k: config["settings"][k] for k, v in config["asked"].items() if v == "auto" and k not in machine}


def _check_own(previous: Run, own: Mapping[str, bool]) -> None:
    """A run continues with the caller's own encoder, views and system where it began with them."""
    for name, is_own in own.items():
        if bool(previous.config["data"].get(name)) != is_own:
            argument = {"own_system": "a class as method="}.get(name, f"{name.removeprefix('own_')}=")
            what = f"{'without' if is_own else 'with'} {argument}"
            raise UserError(f"{previous.path} was started {what}; resume it the same way")


def _check_same(previous: Run, plan: Plan) -> None:
    """A run continues with the data and the settings it began with, or it would be another run."""
    before, source = previous.config["data"], plan.source
    # Of images that are gone nobody can say whether they were the same: most must be there to tell.
    if before["fingerprint"] != source.fingerprint and not 0 < len(source.lost) <= len(source) / 2:
        raise UserError(
            f"{previous.path} was trained on {before['images']} images of {before['source']}, which the {len(source)} "
            f"images of {source.spec} are not; resume it with the data it started with"
        )
    now = plan.config["settings"]
    for name, old in previous.config["settings"].items():
        new = now.get(name)
        if name in MAY_CHANGE or old == new:
            continue
        if not (name == "init" and old and new and Path(old).resolve() == Path(new).resolve()):
            way = "or start a new run"
            if name == "epochs":  # the schedule of the learning rate goes by them
                when = "" if previous.finished else "once it is finished, "
                way = f"or, {when}train a new run from its weights with --init {shlex.quote(str(previous.path))}"
            raise UserError(f"{previous.path} was started with {name} {old}, not {new}; resume it with the same, {way}")


def _check_ranks(ranks: Ranks, resolved: Resolved) -> None:
    if not torch.distributed.is_torchelastic_launched():
        raise UserError(
            f"WORLD_SIZE is {ranks.world_size}, but torchrun did not start this process; unset it, or use torchrun"
        )
    if resolved.device == "mps":
        raise UserError("several processes need CUDA or the CPU; choose --device cpu")
    if resolved.device == "cuda" and ranks.local_world_size > torch.cuda.device_count():
        raise UserError(
            f"torchrun started {ranks.local_world_size} processes on a node with {torch.cuda.device_count()} GPUs; "
            "set --nproc-per-node to the number of GPUs, or choose --device cpu"
        )
    if resolved.batch_size < 2 * ranks.world_size:
        raise UserError(
            f"batch_size {resolved.batch_size} leaves less than 2 images for each of {ranks.world_size} processes; "
            "start fewer processes or increase batch_size"
        )


def _introduce(reporter: Reporter, plan: Plan, why: str) -> None:
    """Say what is about to happen, and what `auto` chose."""
    source, entry, chosen = plan.source, plan.entry, plan.config["settings"]
    reporter.say(source.summary)
    reporter.say(f"{entry.title}, recipe {plan.recipe}" + (f" ({why})" if why else ""))
    autos = [f"{name} {chosen[name]}" for name, value in plan.asked.items() if value == "auto"]
    if autos:
        reporter.say(f"auto chose {', '.join(autos)}")
    for note in [*source.notes, *plan.options.notes(plan.settings), *_pretrained(plan), *_changed_threads(plan)]:
        reporter.say(f"note: {note}")


def _pretrained(plan: Plan) -> list[str]:
    """With few photos, what a pretrained encoder would give, and how to start from one (docs/labels.md has numbers)."""
    source = plan.source
    is_new = plan.previous is None and not plan.settings.init and not plan.own["own_encoder"]
    are_photos = weights.exists(Path(source.spec)) and source.side > SMALL_SIDE
    if not (is_new and are_photos and len(source) < FEW_PHOTOS):
        return []
    return [
        f"with {len(source):,} photos, features of an encoder trained on millions are usually far better; for clusters "
        f"of these: protonce import timm:resnet18 --data {shlex.quote(source.spec)} --out RUN; to train from it: "
        "--init timm:resnet18"
    ]


def _changed_threads(plan: Plan) -> list[str]:
    before = None if plan.previous is None else plan.previous.config.get("threads")
    now = torch.get_num_threads()
    if plan.settings.device != "cpu" or before in (None, now):
        return []
    return [f"the run was started with {before} threads, not {now}: sums are rounded differently, so the bytes differ"]
