"""Random numbers as a function of (seed, purpose, epoch, step or image index), never of global state.

The number of workers or ranks, or an interruption, does not change a draw: the numbers of image 17 in epoch 3 are the
same wherever and whenever they are drawn.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: neighbouring counters become independent-looking 64-bit words."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def key(seed: int, purpose: str, epoch: int = 0, step: int = 0) -> int:
    """A 63-bit number that depends on all four arguments."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{epoch}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, purpose: str, epoch: int = 0, step: int = 0) -> torch.Generator:
    """A torch generator (CPU) for draws that are shared by the whole batch or epoch."""
    return torch.Generator().manual_seed(key(seed, purpose, epoch, step))


def uniform(seed: int, purpose: str, epoch: int, index: NDArray[np.int64], n: int) -> NDArray[np.float64]:  # (B, n)
    """Uniform numbers in [0, 1), `n` for each image index."""
    start = np.uint64(key(seed, purpose, epoch) * _GOLDEN & _MASK)
    with np.errstate(over="ignore"):
        row = _mix(start + _mix(index.astype(np.uint64) * np.uint64(_GOLDEN)))  # (B,)
        words = _mix(row[:, None] + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_GOLDEN))  # (B, n)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


@contextmanager
def preserved(device: str) -> Iterator[None]:
    """Context that restores the caller's random state, of the CPU and of the device."""
    mps = torch.mps.get_rng_state() if device == "mps" else None
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if device == "cuda" else []):
            yield
    finally:
        if mps is not None:
            torch.mps.set_rng_state(mps)
