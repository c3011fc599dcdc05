"""Command-line options made from checked dataclasses: `Settings`, the options of a system, those of a protocol."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from protonce import plain_yaml
from protonce.config import Settings, read_config
from protonce.fields import Checked
from protonce.methods.registry import SYSTEMS, check_names

MAIN_SETTINGS = ("method", "epochs", "seed", "limit", "init")


def scan_method(words: Sequence[str]) -> str:
    """The system named by `--method`, else the default: its options are those that `--help` shows."""
    scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    scan.add_argument("--method", default=Settings().method)
    try:
        method = scan.parse_known_args(list(words))[0].method
    except argparse.ArgumentError:  # --method without a name: the parser of the command reports it
        method = ""
    return method if method in SYSTEMS else Settings().method


def chosen(fields: type[Checked], options: argparse.Namespace) -> dict[str, Any]:
    """The fields that were given on the command line."""
    return {name: getattr(options, name) for name in fields.names() if hasattr(options, name)}


def chosen_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a training run: those of --config, overridden by those given on the command line."""
    config = read_config(options.config) if options.config else {}
    check_names(config, str(options.config))
    given = chosen(Settings, options)
    for entry in SYSTEMS.values():
        given |= chosen(entry.options, options)
    return {**config, **given}


def add_settings(parser: argparse.ArgumentParser, method: str, without: Sequence[str] = ()) -> None:
    """Add --config, and an option for each setting of a training run and each option of a system.

    The help shows the options of the system `method`. Those of other systems are accepted too, so that the error can
    say which system has them.
    """
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings; overrides the recipe")
    main_group = parser.add_argument_group("main settings", "defaults in parentheses; a recipe may override them")
    entry = SYSTEMS[method]
    own = parser.add_argument_group(
        f"options of {entry.name} ({entry.about})", "for those of another system, see --method NAME --help"
    )
    others = parser.add_argument_group("all other settings", "the same names are valid keys in a --config file")
    add_fields(
        main_group, Settings, [name for name in Settings.names() if name in MAIN_SETTINGS and name not in without]
    )
    add_fields(own, entry.options, [name for name in entry.options.names() if name not in without])
    add_fields(others, Settings, [name for name in Settings.names() if name not in (*MAIN_SETTINGS, *without)])
    added = {*entry.options.names(), *without}
    for other in SYSTEMS.values():
        add_fields(parser, other.options, [name for name in other.options.names() if name not in added], shown=False)
        added.update(other.options.names())


def add_fields(
    group: argparse.ArgumentParser | argparse._ArgumentGroup,
    fields: type[Checked],
    names: Sequence[str] | None = None,
    otherwise: Mapping[str, str] = MappingProxyType({}),
    shown: bool = True,
) -> None:
    """Add an option for each field, or for the fields called `names`.

    An option that is not given is absent from the namespace, so that the value of a recipe remains.

    Args:
        group: the parser, or a group of its options.
        fields: the dataclass.
        names: of its fields; None: all.
        otherwise: defaults in words, where they are not those of the dataclass.
        shown: whether `--help` lists the options.
    """
    defaults = fields()
    for field in dataclasses.fields(fields):
        if names is not None and field.name not in names:
            continue
        default = getattr(defaults, field.name)
        usual = otherwise.get(field.name) or str(default).strip("[]").replace(" ", "") or "none"
        text = f"{field.metadata['help']} ({usual})".replace("%", "%%")
        if field.name == "method":
            text = f"system: {', '.join(SYSTEMS)} ({usual}); its options: --method NAME --help"
        if isinstance(default, bool):
            flag = f"--{field.name.replace('_', '-')}"
            described = field.metadata["help"].replace("%", "%%") if shown else argparse.SUPPRESS
            group.add_argument(flag, dest=field.name, action="store_true", default=argparse.SUPPRESS, help=described)
            continue
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=field.name,
            type=str if isinstance(default, str) and default != "auto" else _value,
            default=argparse.SUPPRESS,
            metavar=_metavar(default),
            help=text if shown else argparse.SUPPRESS,
        )


def _metavar(default: object) -> str:
    if isinstance(default, list):
        return ",".join("X" * len(default))
    return {int: "N", float: "X"}.get(type(default), "VALUE")


def _value(text: str) -> object:
    """The value of an option, read as YAML; a list may be written `1,2,3` or `[1, 2, 3]`.

    What cannot be read stays a text, which the field refuses.
    """
    try:
        value = plain_yaml.parse(f"[{text}]" if "," in text and not text.startswith("[") else text)
    except ValueError:
        return text
    return text if value is None else value
