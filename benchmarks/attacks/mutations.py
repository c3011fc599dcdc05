"""Ways to damage bytes, files and structures; each says what it did."""

import copy
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

EDGES: list[Any] = [
    *(None, True, "", "auto", "x", "NaN", [], {}, [[]], [None], {"a": 1}, 0, 1, -1, 2, 3, 7, 1000),
    *(2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.5, 1e308, -1e308, 1e-320, float("inf"), float("nan")),
    *("\0", "a\nb", "../..", "/dev/zero", "é" * 50, "x" * 100_000, "2001-99-99", [1, 2, 3, 4, 5, 6], [1e308] * 3),
]


def below(rng: random.Random, n: int) -> int:
    """A number below n; uses up the same draws whatever n is, because logs of seconds differ in length."""
    return int(rng.random() * n)


def damage(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """Other bytes of a file, at random."""
    return rng.choice(BYTES)(rng, data)


def _truncate(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    end = rng.choice([0, 1, len(data) // 2, max(len(data) - 1, 0), below(rng, len(data) + 1)])
    return data[:end], f"cut at byte {end} of {len(data)}"


def _cut_line(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    lines = data.splitlines(keepends=True)
    end = below(rng, len(lines) + 1)
    return b"".join(lines[:end]), f"cut after line {end} of {len(lines)}"


def _drop_line(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    lines = data.splitlines(keepends=True)
    if not lines:
        return data, "nothing to drop"
    gone = below(rng, len(lines))
    return b"".join(lines[:gone] + lines[gone + 1 :]), f"dropped line {gone + 1} of {len(lines)}"


def _flip(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    if not data:
        return data, "nothing to flip"
    found, places = bytearray(data), []
    for _ in range(rng.choice([1, 1, 1, 3, 30])):
        place, bit = below(rng, len(data)), rng.randrange(8)
        found[place] ^= 1 << bit
        places.append(f"{place}.{bit}")
    return bytes(found), f"flipped bits {', '.join(places[:3])} of {len(data)} bytes"


def _flip_early(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    if not data:
        return data, "nothing to change"
    found, place = bytearray(data), below(rng, min(len(data), 600))
    found[place] = rng.randrange(256)
    return bytes(found), f"byte {place} is {found[place]}"


def _zero(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    start = rng.choice([0, below(rng, len(data) + 1)])
    end = rng.choice([len(data), min(len(data), start + rng.choice([1, 8, 512, 4096]))])
    return data[:start] + bytes(end - start) + data[end:], f"zeros from byte {start} to {end} of {len(data)}"


def _noise(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    start = below(rng, len(data) + 1)
    end = min(len(data), start + rng.choice([4, 64, 4096]))
    return data[:start] + rng.randbytes(end - start) + data[end:], f"noise from byte {start} to {end} of {len(data)}"


def _append(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    tail = rng.choice([b"\n", b"x", b"\0" * 100, rng.randbytes(50), data, b"\n{}\n", b"a: b\n"])
    return data + tail, f"appended {len(tail)} bytes"


def _remove(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    start = below(rng, len(data) + 1)
    end = min(len(data), start + rng.choice([1, 16, 512]))
    return data[:start] + data[end:], f"removed bytes {start} to {end} of {len(data)}"


def _other(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    what = rng.choice([b"{}", b"[]", b"null", b"\xff\xfe\0", b"[" * 5000, b"PK\x05\x06" + bytes(18), b"\x93NUMPY"])
    return what, f"replaced {len(data)} bytes by {what[:20]!r}"


BYTES: list[Callable[[random.Random, bytes], tuple[bytes, str]]] = [
    *(_truncate, _truncate, _cut_line, _drop_line, _flip, _flip, _flip_early, _zero, _noise, _append, _remove, _other)
]


def place(rng: random.Random, path: Path) -> str:
    """Something that is not a regular file in the place of a file."""
    what = rng.choice(["nothing", "nothing", "a folder", "a dangling link", "a link to itself", "a FIFO", "a device"])
    path.unlink()
    if what == "a folder":
        path.mkdir()
    elif what == "a dangling link":
        path.symlink_to("nowhere")
    elif what == "a link to itself":
        path.symlink_to(path.name)
    elif what == "a FIFO":
        os.mkfifo(path)
    elif what == "a device":
        path.symlink_to("/dev/zero" if rng.random() < 0.5 else "/dev/null")
    return f"{path.name} is {what}"


def edit(rng: random.Random, tree: Any, where: str = "") -> tuple[Any, str]:
    """A structure of dicts and lists with one entry removed, added or changed."""
    tree = copy.deepcopy(tree)
    part, path = tree, where
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        if not keys:
            break
        key = rng.choice(keys)
        deeper = isinstance(part[key], dict | list) and part[key] and rng.random() < 0.8
        if not deeper:
            break
        part, path = part[key], f"{path}.{key}"
    if not isinstance(part, dict | list) or not part:
        return rng.choice(EDGES), f"{path} is another value"
    way = rng.random()
    if way < 0.35:
        del part[key]
        return tree, f"removed {path}.{key}"
    if way < 0.42 and isinstance(part, dict):
        part["unknown"] = 1
        return tree, f"added {path}.unknown"
    before, value = part[key], rng.choice(EDGES)
    if isinstance(before, int | float) and not isinstance(before, bool) and rng.random() < 0.5:
        value = rng.choice([before + 1, before * 2, -before, before + 0.5, before * 1000])
    part[key] = value
    return tree, f"{path}.{key} is {ascii(value)[:40]} instead of {ascii(before)[:40]}"


def swap(other: Path, path: Path) -> str:
    """The same file of another run."""
    shutil.copy(other, path)
    return f"{path.name} is that of another run"
