"""What comes before the first epoch: which data, which settings, which device, and whether a run goes on."""

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from protonce import board, run, weights
from protonce.auto import DataSize, Machine, choose_recipe, resolve
from protonce.config import Resolved, Settings, read_recipe
from protonce.data.sources import Data, Source, open_source
from protonce.encoder import fixed_size
from protonce.errors import UserError
from protonce.progress import Reporter
from protonce.ranks import Ranks
from protonce.run import Run

FREE = ("workers", "checkpoint_minutes", "tensorboard_every")  # settings that change nothing of what is learnt


@dataclass(frozen=True)
class Plan:
    """A training run that may begin: every mistake that can be seen beforehand has been."""

    out: Path
    source: Source
    recipe: str
    asked: Settings
    resolved: Resolved
    previous: Run | None  # the run in `out` that goes on


def prepare(
    data: Data,
    out: Path,
    recipe: str | None,
    resume: bool,
    settings: Mapping[str, Any],
    own: Mapping[str, bool],
    reporter: Reporter,
    ranks: Ranks,
) -> Plan:
    """Open the data and resolve the settings; arguments as for `protonce.train`.

    Raises:
        UserError: something the caller can mend. Nothing has been written.
    """
    previous = _previous(out, resume)
    if previous is not None:
        before = previous.config["recipe"]
        if recipe not in (None, before):
            raise UserError(f"{out} was begun with recipe {before}, not {recipe}; resume it with the same")
        recipe = before
        settings = {**previous.config["asked"], **_decided(previous), **settings}
    # Checked before the data is looked at; a recipe that is yet to be chosen says nothing of what is needed here.
    given = Settings.from_mapping({**(read_recipe(recipe) if recipe else {}), **settings}, "protonce")
    device = find_device(given.device)
    if isinstance(data, str | Path) and data != "builtin":
        reporter.say(f"looking at the images of {data}")
    known = previous.images[0] if previous is not None else None
    source = open_source(data, "train", given.seed, given.limit, known)
    if source.sizes is None and not own["own_views"]:
        raise UserError("the data set gives no images; pass views= and encoder= that know what to do with its items")

    size = DataSize(len(source), source.side)
    why = ""
    if recipe is None:
        recipe, why = choose_recipe(size, device)
    # Weights to start from bring their architecture along: it wins over the recipe's, and an option over both.
    brought = weights.architecture(given.init)
    if fixed_size(str(brought.get("backbone", ""))) is None:  # then the size of the images is these images' matter
        brought = {name: value for name, value in brought.items() if name not in ("image_size", "plain_resize")}
    asked = Settings.from_mapping({**read_recipe(recipe), **brought, **settings}, "protonce")
    if asked.init and Path(asked.init).exists():  # found again from any working directory
        asked = dataclasses.replace(asked, init=str(Path(asked.init).resolve()))
    resolved = resolve(asked, size, look_at_machine(device, ranks))
    if resolved.head == "none":
        raise UserError("head is none, which is for imported encoders; train with linear or mlp")
    if resolved.device == "cpu" and resolved.precision == "16":
        raise UserError("precision 16 needs a GPU; on a CPU choose 32")
    if resolved.kmeans_engine == "faiss" and importlib.util.find_spec("faiss") is None:
        raise UserError("kmeans_engine is faiss, which is not installed; choose torch")
    if ranks.size > 1:
        _check_ranks(ranks, resolved)
    if resolved.tensorboard_every:
        board.check()
    if previous is not None:
        _check_same(previous, source, resolved, own)
    _introduce(reporter, source, recipe, why, resolved, asked)
    return Plan(out, source, recipe, asked, resolved, previous)


def _previous(out: Path, resume: bool) -> Run | None:
    """The run in the folder that is to be resumed, None for a new one."""
    if out.is_file():
        raise UserError(f"{out} is a file; name a new folder for the run")
    if not out.exists() or all(p.name.startswith(".") for p in out.iterdir()):
        return None
    if not resume:
        raise UserError(f"{out} is not empty; choose a new folder, or --resume to continue the run in it")
    if run.hardly_begun(out):
        return None
    previous = Run(out)
    if previous.imported:
        raise UserError(f"{out} holds an imported encoder; train a new run from it with --init {out}")
    return previous


def _decided(previous: Run) -> dict[str, object]:
    """What `auto` chose when the run began, for the data: another version may choose otherwise. Not for the machine."""
    machine = ("device", "precision", "kmeans_engine", "workers")
    asked = previous.config["asked"]
    return {k: getattr(previous.settings, k) for k, v in asked.items() if v == "auto" and k not in machine}


def _check_same(previous: Run, source: Source, resolved: Resolved, own: Mapping[str, bool]) -> None:
    """A run continues with the data and the settings it began with, or it would be another run."""
    before = previous.config["data"]
    for name, is_own in own.items():
        if before[name] != is_own:
            what = f"{'without' if is_own else 'with'} {name.removeprefix('own_')}="
            raise UserError(f"{previous.path} was begun {what}; resume it the same way")
    # Of images that are gone nobody can say whether they were the same: most must be there to tell.
    if before["fingerprint"] != source.fingerprint and not 0 < len(source.lost) <= len(source) / 2:
        raise UserError(
            f"{previous.path} was trained on {before['images']} images of {before['source']}, and these "
            f"{len(source)} of {source.spec} are not the same; resume it on the data it began with"
        )
    for name in Settings.names():
        if name in FREE:
            continue
        old, new = getattr(previous.settings, name), getattr(resolved, name)
        if old != new and not (name == "init" and old and new and Path(old).resolve() == Path(new).resolve()):
            raise UserError(
                f"{previous.path} was begun with {name} {old}, not {new}; resume it with the same, or start a new run"
            )


def _check_ranks(ranks: Ranks, resolved: Resolved) -> None:
    if not torch.distributed.is_torchelastic_launched():
        raise UserError(
            f"WORLD_SIZE is {ranks.size}, but torchrun did not start this process; unset it, or use torchrun"
        )
    if resolved.device == "mps":
        raise UserError("several processes need CUDA or the CPU; choose --device cpu")
    if resolved.device == "cuda" and ranks.here > torch.cuda.device_count():
        raise UserError(
            f"torchrun started {ranks.here} processes here, and there are {torch.cuda.device_count()} GPUs; "
            "set --nproc-per-node to that, or choose --device cpu"
        )
    if resolved.batch_size < 2 * ranks.size:
        raise UserError(
            f"batch_size {resolved.batch_size} leaves less than 2 images for each of {ranks.size} processes; "
            "start fewer, or set a larger one"
        )


def find_device(asked: str) -> str:
    """The device that is asked for, or the best there is."""
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if has[name])
    if not has[asked]:
        raise UserError(f"device {asked} is not there; choose cpu or auto")
    return asked


def look_at_machine(device: str, ranks: Ranks) -> Machine:
    """What this machine can do, with several processes on it for each of them."""
    return Machine(
        device=device,
        bfloat16=device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False),
        faiss=sys.platform == "linux" and importlib.util.find_spec("faiss") is not None,  # macOS: clashes with torch
        cores=max((os.cpu_count() or 1) // ranks.here, 1),
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
