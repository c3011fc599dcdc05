"""Whether two sets of items are the same: by names and sizes, and by what some of the items are."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

SOME = 16  # items of a set that tell whether it is another


def fingerprint_of(entries: Iterable[tuple[str, int]]) -> str:
    """A hash over sorted names and sizes."""
    digest = hashlib.sha256()
    for name, size in sorted(entries):
        digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def spread(n: int) -> list[int]:
    """Positions of some of n items, evenly spread."""
    return [int(i) for i in np.linspace(0, n - 1, min(n, SOME))]


def looked_into(load: Callable[[int], Any], n: int) -> bytes:
    """What some of n items are. One that cannot be loaded counts as nothing: training replaces it, and says so."""
    found = []
    for i in spread(n):
        try:
            found.append(_bytes_of(load(i)))
        except Exception:  # the user's own `load`: any kind
            found.append(b"")
    return b"".join(found)


def _bytes_of(item: Any) -> bytes:
    """An item, or the parts it has, as bytes; of what is neither an array nor a text or number, by its repr."""
    if isinstance(item, Mapping):
        item = list(item.items())
    if isinstance(item, list | tuple):
        return b"".join(map(_bytes_of, item))
    if hasattr(item, "detach"):  # a tensor, of a type that numpy may not know
        item = (item.detach().float() if item.is_floating_point() else item).cpu().numpy()
    array = np.asarray(item)
    return repr(item).encode() if array.dtype == object else array.tobytes()
