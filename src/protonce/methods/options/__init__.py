"""Options of each system, apart from the settings that all share, and what people call it: one module a system.

Loads no torch, so that `--help` can show them; the class of a system is imported when it is asked for.
"""

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from protonce.config import Resolved
from protonce.fields import Checked

if TYPE_CHECKING:
    from protonce.methods.base import System


@dataclass(frozen=True)
class Options(Checked):
    """Base of a system's options; a system without any has just this."""

    def resolve(self, settings: Resolved, n: int) -> Self:
        """The same options for n images, with a number for every `auto`."""
        chosen = {name: value for name, value in self.choices(settings, n).items() if getattr(self, name) == "auto"}
        resolved = dataclasses.replace(self, **chosen)
        for name in self.names():
            if getattr(resolved, name) == "auto":
                raise ValueError(f"{type(self).__name__}.choices has no value for {name}, which is auto")
        return resolved

    def choices(self, settings: Resolved, n: int) -> dict[str, Any]:  # noqa: ARG002
        """What `auto` means for each option that may be `auto`."""
        return {}

    def notes(self, settings: Resolved) -> list[str]:  # noqa: ARG002
        """Notes to print before training starts."""
        return []

    def trials(self, settings: Resolved, n: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Six changes of these settings and options to tune the system by (`protonce tune`), all resolved.

        They cover the learning rate, and what else matters most to the system.
        """
        return [{}, *({"lr": settings.lr * factor} for factor in (0.25, 0.5, 2.0, 4.0, 8.0))]


@dataclass(frozen=True)
class Entry:
    """A system as it is registered."""

    name: str
    title: str  # what people call it
    about: str  # what it does, for --help
    options: type[Options]
    place: "str | type[System]"  # "MODULE:CLASS", or the user's own class
    recipe: str = ""  # its settings where no recipe is named; empty: chosen by the data and the device
    head: str = ""  # projection head of its paper, in place of that of a recipe for any system; empty: the recipe's
    paper: tuple[str, ...] = ()  # its rows in the paper's tables
    bound: bool = False  # whether it is a bound of a comparison, and no contender

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


ENTRIES: dict[str, Entry] = {}  # filled by the modules of this package
Class = TypeVar("Class", bound=type[Options])


def register(
    name: str,
    title: str,
    about: str,
    place: str,
    *,
    head: str = "",
    paper: tuple[str, ...] = (),
    bound: bool = False,
) -> Callable[[Class], Class]:
    """Register the system `place` ("MODULE:CLASS") with the decorated class as its options; see `Entry`."""

    def add(options: Class) -> Class:
        ENTRIES[name] = Entry(name, title, about, options, place, head=head, paper=paper, bound=bound)
        return options

    return add
