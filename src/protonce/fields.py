"""Dataclasses whose fields a person may set: documented field by field, and checked at construction. Loads no torch."""

import dataclasses
import math
import numbers
import types
import typing
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, Self

from protonce.errors import UserError, shown

LONGEST_TEXT = 4096  # characters, as many as a path may have
LONGEST_LIST = 100  # numbers


def setting(
    default: object,
    text: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    length: int | None = None,
    longest: int = LONGEST_LIST,
    empty: bool = False,
    auto: bool = False,
) -> Any:
    """A field with its default, its description, and the range in which its number (or each of its list) lies.

    A list has `length` numbers, or else from one to `longest` of them; or none, with `empty`. With `auto` the field may
    also be the word `auto`, until it is resolved; its annotation is the type it has then.
    """
    rules = {"help": text, "least": least, "above": above, "most": most}
    return _field(default, {**rules, "length": length, "longest": longest, "empty": empty, "auto": auto})


def like(fields: "type[Checked]", name: str, default: object) -> Any:
    """A field with the description and the range of a field of another dataclass."""
    return _field(default, next(field.metadata for field in dataclasses.fields(fields) if field.name == name))


def _field(default: object, rules: Mapping[str, Any]) -> Any:
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
            given, rules = getattr(self, field.name), field.metadata
            if isinstance(given, list | tuple) and len(given) > rules["longest"]:  # before all are looked at
                raise UserError(f"setting {field.name} has {len(given):,} numbers; it takes at most {rules['longest']}")
            is_auto = rules["auto"] and isinstance(given, str) and given == "auto"
            value = "auto" if is_auto else _fit(given, hints[field.name])
            if value is None:
                kind = _describe(hints[field.name]) + (" or auto" if rules["auto"] else "")
                raise UserError(f"setting {field.name} is {shown(given)}; it takes {kind}")
            object.__setattr__(self, field.name, value)
            if isinstance(value, str):
                _check_text(field.name, value)
            else:
                _check_range(field.name, value, rules)

    @classmethod
    def names(cls) -> list[str]:
        """Names of the settings, in the order in which they are documented."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], where: str) -> Self:
        """The fields from names and values; `where` says in an error who wrote an unknown name."""
        for name in values:
            if name not in cls.names():
                raise unknown_name(name, cls.names(), where, cls.COMMAND)
        return cls(**values)


def unknown_name(name: str, known: list[str], where: str, command: str) -> UserError:
    """The error for a name that no setting has, with the nearest one that there is."""
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"`{command} --help` lists them"
    return UserError(f"{where} has no setting {shown(name)}; {hint}")


def _fit(value: object, hint: Any) -> object:
    """`value` as the type `hint`, a plain Python object; or None where it is of another type."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        fitted = [_fit(value, option) for option in typing.get_args(hint)]
        return next((f for f in fitted if f is not None), None)
    if origin is Literal:
        word = value if isinstance(value, str) else _fit_number(value, int)  # YAML takes 32 for a number
        return next((w for w in typing.get_args(hint) if w == word or (w.isdecimal() and int(w) == word)), None)
    if origin is list:
        (inner,) = typing.get_args(hint)
        if not isinstance(value, list | tuple):
            value = [value]  # one granularity may be written as a number
        items = [_fit(item, inner) for item in value]
        return None if None in items else items
    if hint is float and isinstance(value, str):
        try:
            return float(value)  # YAML takes 1e-3 for a text
        except ValueError:
            return None
    if hint is str:
        return str(value) if isinstance(value, str) else None
    if hint is bool:
        return value if isinstance(value, bool) else None
    return _fit_number(value, hint) if hint in (int, float) else None


def _fit_number(value: object, hint: type[int] | type[float]) -> int | float | None:
    """Python's and NumPy's numbers as `hint`; None for anything else, and for a fraction instead of a whole number."""
    if isinstance(value, bool):
        return None
    if hint is int:
        return int(value) if isinstance(value, numbers.Integral) else None
    try:
        return float(value) if isinstance(value, numbers.Real) else None
    except OverflowError:  # a whole number that no float can hold
        return math.inf


def _describe(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_describe(option) for option in typing.get_args(hint))
    if origin is Literal:
        return " or ".join(typing.get_args(hint))
    if origin is list:
        return f"a list of {_describe(typing.get_args(hint)[0]).removeprefix('a ').removeprefix('an ')}s"
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[hint]


def _check_text(name: str, text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise UserError(f"setting {name} has {len(text):,} characters; it takes at most {LONGEST_TEXT:,}")
    if any(unicodedata.category(c) == "Cc" for c in text):
        raise UserError(f"setting {name} is {shown(text)}; it must not contain control characters")


def _check_range(name: str, value: object, rules: Mapping[str, Any]) -> None:
    if value == [] and not rules["empty"]:
        raise UserError(f"setting {name} is empty; name at least one number")
    if isinstance(value, list) and rules["length"] is not None and len(value) != rules["length"]:
        raise UserError(f"setting {name} has {len(value)} numbers; it takes {rules['length']}")
    for number in value if isinstance(value, list) else [value]:
        if not isinstance(number, int | float):
            continue
        what = f"setting {name} is {shown(number)}; it must be"
        if not -math.inf < number < math.inf:
            raise UserError(f"{what} a finite number")
        if rules["above"] is not None and not number > rules["above"]:
            raise UserError(f"{what} above {rules['above']}")
        if rules["least"] is not None and number < rules["least"]:
            raise UserError(f"{what} at least {rules['least']}")
        if rules["most"] is not None and number > rules["most"]:
            raise UserError(f"{what} at most {rules['most']:,}")
