"""Identify a set of items by names, sizes and a sample of their content."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

SAMPLED = 16  # items of a set whose content is compared


def fingerprint_of(entries: Iterable[tuple[str, int]]) -> str:
    """Hash of the sorted names and sizes."""
    digest = hashlib.sha256()
    for name, size in sorted(entries):
        digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def identity_of_annotated(
    images: Iterable[tuple[str, Path]], annotations: Iterable[bytes], classes: Iterable[str]
) -> str:
    """Hash of names and sizes of image files, the content of their annotations, and the classes in their order."""
    digest = hashlib.sha256(fingerprint_of((name, file.stat().st_size) for name, file in images).encode())
    for part in (*annotations, "\0".join(classes).encode("utf-8", "surrogatepass")):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def evenly_spaced(n: int) -> list[int]:
    """Indices of up to SAMPLED of n items, evenly spaced."""
    return [int(i) for i in np.linspace(0, n - 1, min(n, SAMPLED))]


def sample_bytes(load: Callable[[int], Any], n: int) -> bytes:
    """Content of up to SAMPLED of n items. An item that cannot be loaded is empty: training replaces and reports it."""
    found = []
    for i in evenly_spaced(n):
        try:
            found.append(_bytes_of(load(i)))
        except Exception:  # a user-defined `load` may raise anything
            found.append(b"")
    return b"".join(found)


def _bytes_of(item: Any) -> bytes:
    """An item, or its parts, as bytes; the repr of anything but arrays, strings and numbers."""
    if isinstance(item, Mapping):
        item = list(item.items())
    if isinstance(item, list | tuple):
        return b"".join(map(_bytes_of, item))
    if hasattr(item, "detach"):  # a tensor, whose dtype numpy may not support
        item = (item.detach().float() if item.is_floating_point() else item).cpu().numpy()
    array = np.asarray(item)
    return repr(item).encode() if array.dtype == object else array.tobytes()
