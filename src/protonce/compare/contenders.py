"""The rows of a table: systems, recipes and files of settings by name, with what they share. Loads no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protonce.config import Settings, read_config, read_recipe, recipes
from protonce.errors import UserError, shown
from protonce.methods import registry

# Settings that every row of a table has in common. A system differs in its options, and in how it is optimised.
SHARED = (
    *("backbone", "width", "stem", "block_init", "init", "image_size", "plain_resize", "mean", "std"),
    *("views", "crop_scale", "flip_p", "jitter", "jitter_p", "grey_p", "blur_p", "blur_sigma"),
    *("epochs", "batch_size", "seed", "limit", "device", "precision", "workers"),
    *("checkpoint_minutes", "snapshot_every", "keep_features"),
)


@dataclass(frozen=True)
class Contender:
    """A row of the table."""

    name: str
    method: str
    settings: dict[str, Any]  # common settings and options of the system that were asked for, shared ones included


def read_contenders(names: Sequence[str], shared: Mapping[str, Any]) -> list[Contender]:
    """The rows that `--systems` names.

    Args:
        names: of systems, of recipes, or paths of YAML files with settings of one's own (`method`, its options, and how
            it is optimised). Of a recipe the settings in `SHARED` are left out.
        shared: settings of all rows, and options of some of the systems; a row's own settings override them.

    Raises:
        UserError: a name is unknown, given twice, or a file has a setting that all rows share.
    """
    found = [_read(name, shared) for name in names]
    twice = sorted({c.name for c in found if [other.name for other in found].count(c.name) > 1})
    if twice:
        raise UserError(f"--systems names {', '.join(twice)} twice; rename a file, or leave one out")
    return found


def _read(name: str, shared: Mapping[str, Any]) -> Contender:
    if name.endswith((".yaml", ".yml")):
        own, stem = read_config(Path(name)), Path(name).stem
        registry.check_names(own, name)
        common = [setting for setting in own if setting in SHARED]
        if common:
            raise UserError(f"{name} sets {common[0]}, which all systems of a comparison share; give it as an option")
    elif name in registry.SYSTEMS:
        own, stem = {"method": name}, name
    elif name in recipes():
        own, stem = {k: v for k, v in read_recipe(name).items() if k not in SHARED}, name
    else:
        known = ", ".join([*registry.SYSTEMS, *recipes()])
        raise UserError(f"unknown system {shown(name)}; give a .yaml file, or one of {known}")
    entry = registry.find(str(own.get("method", Settings().method)))
    others = {option for other in registry.SYSTEMS.values() for option in other.options.names()}
    ours = {k: v for k, v in shared.items() if k not in others or k in entry.options.names()}
    return Contender(stem, entry.name, {**ours, **own, "method": entry.name})
