"""YAML as settings need it: scalars, lists and mappings, without what makes a short text large or ambiguous.

No anchors and aliases (a few hundred bytes of them can expand to gigabytes), no name twice in a mapping (YAML would
keep the last), no deep nesting, no long text. Objects other than those of YAML itself are never built.
"""

import copy
import functools
from typing import Any

import yaml

from protonce.errors import one_line, shown

LONGEST = 100_000  # characters; a config.yaml has some 5,000
KINDS = {"int": "whole number", "float": "number", "timestamp": "date"}
DEEPEST = 10  # levels of lists and mappings; a config.yaml has 3


def parse(text: str) -> Any:
    """The value of YAML text.

    Raises:
        ValueError: the text cannot be read; the message is the end of a sentence that starts with its name.
    """
    if len(text) > LONGEST:
        raise ValueError(f"is longer than {LONGEST:,} characters, which is too long for settings")
    return copy.deepcopy(_parse(text))


@functools.lru_cache(maxsize=64)  # a training reads its recipe and its config.yaml several times
def _parse(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"is not YAML that can be read: {one_line(error.problem or '', 200)}{place}") from None
    except yaml.YAMLError as error:  # such as a control character
        raise ValueError(f"is not YAML that can be read: {one_line(str(error), 200)}") from None


class _Loader(yaml.SafeLoader):
    """Refuses while it reads, before anything has been expanded."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _error("anchors and aliases are not supported", event)
        if self._depth == DEEPEST:
            raise _error(f"more than {DEEPEST} levels of nesting", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise _error(f"the name {shown(key.value)} is there twice", key)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError):
            # YAML takes 2001-99-99 for a date, 0x_ for a number, and 5,000 digits too.
            kind = node.tag.rpartition(":")[2]
            raise _error(f"{shown(node.value)} is not a valid {KINDS.get(kind, kind)}", node) from None


def _error(problem: str, where: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)
