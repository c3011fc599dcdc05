"""The systems by name. Nothing else in the program names them.

Every module of `methods/options` registers a system; its class is imported when it is asked for. Loads no torch.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protonce.config import Settings
from protonce.errors import UserError, shown
from protonce.fields import unknown_name
from protonce.methods import options
from protonce.methods.options import ENTRIES, Entry

if TYPE_CHECKING:
    from protonce.methods.base import System

for _module in pkgutil.iter_modules(options.__path__, f"{options.__name__}."):
    importlib.import_module(_module.name)
SYSTEMS: Mapping[str, Entry] = dict(sorted(ENTRIES.items()))


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
    common, own = Settings.names(), entry.options.names()
    for name in values:
        if name in (*common, *own):
            continue
        if owners(name):
            raise UserError(f"{name} is an option of {' and '.join(owners(name))}; {entry.name} does not have it")
        raise unknown_name(name, [*common, *own], where, Settings.COMMAND)
    return _only(values, common), _only(values, own)


def check_names(values: Mapping[str, object], where: str) -> None:
    """Refuse names that are neither a common setting nor an option of any system."""
    known = [*Settings.names(), *(name for entry in SYSTEMS.values() for name in entry.options.names())]
    for name in values:
        if name not in known:
            raise unknown_name(name, known, where, Settings.COMMAND)


def part_recipe(values: Mapping[str, object], entry: Entry) -> dict[str, Any]:
    """Of a recipe what a system has: one recipe serves several systems, whose options and projection heads differ.

    A recipe for one system, or with a head that starts from PCA, has a head of its own.
    """
    own = "method" in values or values.get("head_init") == "pca"
    head = {"head": entry.head} if entry.head and not own else {}
    return {**_only(values, (*Settings.names(), *entry.options.names())), **head}


def _only(values: Mapping[str, object], names: "tuple[str, ...] | list[str]") -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}
