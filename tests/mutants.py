"""Seeded damage: bytes flipped, overwritten, zeroed, cut off or repeated."""

from pathlib import Path

import numpy as np

from protonce.data.sources import Source, open_source
from protonce.errors import UserError


def mutate(rng: np.random.Generator, data: bytes) -> tuple[bytes, slice]:
    """Damaged bytes, and the range of the original that was hit; what is cut off or moved is hit, too."""
    kind = rng.choice(["flip", "flip", "overwrite", "zeros", "cut", "repeat"])
    at = int(rng.integers(len(data)))
    damaged, end = bytearray(data), min(at + int(rng.integers(1, 40)), len(data))
    if kind == "flip":
        end = at + 1
        damaged[at] ^= 1 << int(rng.integers(8))
    elif kind == "overwrite":
        damaged[at:end] = rng.integers(0, 256, end - at, dtype=np.uint8).tobytes()
    elif kind == "zeros":
        end = min(at + int(rng.integers(1, 1200)), len(data))
        damaged[at:end] = bytes(end - at)
    elif kind == "cut":
        damaged, end = damaged[:at], len(data)
    else:
        damaged[at:at], end = damaged[at:end], len(data)
    return bytes(damaged), slice(at, end)


def open_damaged(path: Path) -> tuple[Source | None, str]:
    """The source, or the error that it is refused with; any other exception is one of the test."""
    try:
        return open_source(path), ""
    except UserError as error:
        return None, str(error)
