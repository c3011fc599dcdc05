"""config.yaml: the settings of a run, all of which are required."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protonce import manifest
from protonce.config import Resolved, parse_yaml
from protonce.errors import UserError
from protonce.methods.registry import SYSTEMS
from protonce.run.migration import migrated

FILE = "config.yaml"


def read_config_file(run: Path) -> tuple[dict[str, Any], Resolved, dict[str, Any]]:
    """The content of config.yaml, the common settings, and the options of the system.

    A run of an older version is read as what its code did.

    Raises:
        UserError: the file is missing or damaged, or lacks a setting.
    """
    if not (run / FILE).exists():
        raise UserError(f"{run} is not a run folder: it has no {FILE}")
    text = manifest.read(run, FILE)
    with manifest.explain_damage(run / FILE):
        config = migrated(parse_yaml(text.decode(), str(run / FILE)))
        values: dict[str, Any] = dict(config["settings"])
        _check_complete(run, values, [*Resolved.names(), *_options(config)])
        _check_complete(run, config, ("recipe", "system", "asked", "data"))
        _check_complete(run, config["system"], ("title", "terms"))
        _check_complete(run, config["data"], ("source", "images", "fingerprint", "own_encoder", "own_views"))
        common = {name: values.pop(name) for name in Resolved.names()}
        return config, Resolved(**common), values


def _options(config: Mapping[str, Any]) -> Sequence[str]:
    """Options that the run must have; unknown for a system of the user's own."""
    entry = SYSTEMS.get(config["settings"].get("method", ""))
    has_options = entry is not None and not config.get("imported") and not config["data"].get("own_system")
    return entry.options.names() if entry is not None and has_options else []


def _check_complete(run: Path, values: Mapping[str, Any], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in values]
    if missing:
        raise UserError(f"{run / FILE} has no value for {missing[0]}; {manifest.RESTORE}")
