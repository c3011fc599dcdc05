"""The systems by name: class, options, recipe, and words for people. Nothing else in the program names them.

Loads no torch: a class is imported when it is asked for.
"""

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protonce.config import Settings
from protonce.errors import UserError, shown
from protonce.fields import unknown_name
from protonce.methods.options import MoCoOptions, Options, PCLOptions

if TYPE_CHECKING:
    from protonce.methods.base import System


@dataclass(frozen=True)
class Entry:
    """A system as it is registered."""

    name: str
    title: str  # what people call it
    about: str  # what it does, for --help
    options: type[Options]
    place: "str | type[System]"  # "MODULE:CLASS", or the user's own class
    recipe: str = ""  # its settings where no recipe is named; empty: chosen by the data and the device

    @property
    def is_own(self) -> bool:
        """Whether it is the user's own class, which a run folder cannot hold."""
        return not isinstance(self.place, str)

    @property
    def system(self) -> "type[System]":
        """The class, imported now."""
        if not isinstance(self.place, str):
            return self.place
        module, _, name = self.place.partition(":")
        found: type[System] = getattr(importlib.import_module(module), name)
        return found


_ENTRIES = (
    Entry("moco", "MoCo", "instance discrimination with a queue of keys", MoCoOptions, "protonce.methods.moco:MoCo"),
    Entry("pcl", "PCL", "MoCo and a prototype term (ProtoNCE, eq. 11)", PCLOptions, "protonce.methods.pcl:PCL"),
)
SYSTEMS = {entry.name: entry for entry in _ENTRIES}


def find(method: "str | type[System]") -> Entry:
    """The entry of a system by its name, or one made for the user's own class.

    Raises:
        UserError: the name is unknown, or the class cannot be trained.
    """
    if isinstance(method, str):
        if method not in SYSTEMS:
            raise UserError(f"unknown system {shown(method)}; available systems: {', '.join(SYSTEMS)}")
        return SYSTEMS[method]
    for entry in SYSTEMS.values():
        if entry.system is method:
            return entry
    if not (isinstance(method, type) and hasattr(method, "check")):
        raise UserError(f"method is {shown(method)}; name a system, or pass a subclass of System")
    method.check()
    about = (inspect.getdoc(method) or "").partition("\n")[0]
    return Entry(method.__name__.lower(), method.__name__, about, method.Options, method, method.recipe)


def owners(option: str) -> list[str]:
    """Names of the systems with this option."""
    return [entry.name for entry in SYSTEMS.values() if option in entry.options.names()]


def part(values: Mapping[str, object], entry: Entry, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part settings that a person wrote into the common ones and the options of a system.

    Raises:
        UserError: a name is neither; `where` says who wrote it.
    """
    common, options = Settings.names(), entry.options.names()
    for name in values:
        if name in (*common, *options):
            continue
        if owners(name):
            raise UserError(f"{name} is an option of {' and '.join(owners(name))}; {entry.name} does not have it")
        raise unknown_name(name, [*common, *options], where, Settings.COMMAND)
    return _only(values, common), _only(values, options)


def check_names(values: Mapping[str, object], where: str) -> None:
    """Refuse names that are neither a common setting nor an option of any system."""
    known = [*Settings.names(), *(name for entry in SYSTEMS.values() for name in entry.options.names())]
    for name in values:
        if name not in known:
            raise unknown_name(name, known, where, Settings.COMMAND)


def part_recipe(values: Mapping[str, object], entry: Entry) -> dict[str, Any]:
    """Of a recipe what a system has: one recipe serves several systems, whose options differ."""
    return _only(values, (*Settings.names(), *entry.options.names()))


def _only(values: Mapping[str, object], names: "tuple[str, ...] | list[str]") -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}
