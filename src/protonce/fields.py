"""Dataclasses whose fields a person may set: documented field by field, and checked at construction. Loads no torch."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, Self

from protonce.errors import UserError


def setting(
    default: object,
    text: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    length: int | None = None,
    empty: bool = False,
    auto: bool = False,
) -> Any:
    """A field with its default, its description, and the range in which its number (or each of its list) lies.

    With `auto` the field may also be the word `auto`, until it is resolved; its annotation is the type it has then.
    """
    rules = {"help": text, "least": least, "above": above, "most": most, "length": length, "empty": empty, "auto": auto}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=rules)
    return dataclasses.field(default=default, metadata=rules)


@dataclass(frozen=True)
class Checked:
    """Base of `Settings` and of the options of systems and evaluations. A subclass is a frozen dataclass."""

    COMMAND: ClassVar[str] = "protonce train"  # whose --help lists the names

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            given, auto = getattr(self, field.name), field.metadata["auto"]
            value = given if auto and given == "auto" else _fit(given, hints[field.name])
            if value is None:
                kind = _describe(hints[field.name]) + (" or auto" if auto else "")
                raise UserError(f"setting {field.name} is {given!r}; it takes {kind}")
            object.__setattr__(self, field.name, value)
            _check_range(field.name, value, field.metadata)

    @classmethod
    def names(cls) -> list[str]:
        """Names of the settings, in the order in which they are documented."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], where: str) -> Self:
        """The fields from names and values; `where` says in an error who wrote an unknown name."""
        for name in values:
            if name not in cls.names():
                close = get_close_matches(name, cls.names(), n=1)
                hint = f"; did you mean {close[0]}?" if close else f"; `{cls.COMMAND} --help` lists them"
                raise UserError(f"{where} has no setting {name!r}{hint}")
        return cls(**values)


def _fit(value: object, hint: Any) -> object:
    """`value` as the type `hint`, or None where it is of another type."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        fitted = [_fit(value, option) for option in typing.get_args(hint)]
        return next((f for f in fitted if f is not None), None)
    if origin is Literal:
        return str(value) if str(value) in typing.get_args(hint) else None
    if origin is list:
        (inner,) = typing.get_args(hint)
        if isinstance(value, tuple):
            value = list(value)
        if _fit(value, inner) is not None:
            value = [value]  # one granularity may be written as a number
        if not isinstance(value, list):
            return None
        items = [_fit(item, inner) for item in value]
        return None if None in items else items
    if hint is float and isinstance(value, str):
        try:
            return float(value)  # YAML takes 1e-3 for a text
        except ValueError:
            return None
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    return value if hint is str and isinstance(value, str) else None


def _describe(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_describe(option) for option in typing.get_args(hint))
    if origin is Literal:
        return " or ".join(typing.get_args(hint))
    if origin is list:
        return f"a list of {_describe(typing.get_args(hint)[0]).removeprefix('a ').removeprefix('an ')}s"
    return {int: "a whole number", float: "a number", str: "a text"}[hint]


def _check_range(name: str, value: object, rules: Mapping[str, Any]) -> None:
    length = rules["length"]
    if value == [] and not rules["empty"]:
        raise UserError(f"setting {name} is empty; name at least one number")
    if isinstance(value, list) and length is not None and len(value) != length:
        raise UserError(f"setting {name} has {len(value)} numbers; it takes {length}")
    for number in value if isinstance(value, list) else [value]:
        if not isinstance(number, int | float):
            continue
        if not math.isfinite(number):
            raise UserError(f"setting {name} is {number}; it must be a finite number")
        if rules["least"] is not None and number < rules["least"]:
            raise UserError(f"setting {name} is {number}; it must be at least {rules['least']}")
        if rules["above"] is not None and not number > rules["above"]:
            raise UserError(f"setting {name} is {number}; it must be above {rules['above']}")
        if rules["most"] is not None and number > rules["most"]:
            raise UserError(f"setting {name} is {number}; it must be at most {rules['most']}")
