"""prototypes.npz, the prototypes at the end of training, and assignments/EPOCH.npz, the clusters of each epoch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonce.files import write_npz
from protonce.prototypes import Prototypes, parents

FILE = "prototypes.npz"
PROTOTYPE_FIELDS = ("centroids", "means", "assignment", "concentration")


def write_prototypes(path: Path, prototypes: Sequence[Prototypes]) -> None:
    """Write prototypes.npz: the prototypes of each granularity, coarse to fine, and the parent of each finer one."""
    arrays: dict[str, Any] = {}
    for m, c in enumerate(prototypes):
        arrays |= {f"{name}_{m}": getattr(c, name).cpu().numpy() for name in PROTOTYPE_FIELDS}
        if m > 0:
            arrays[f"parent_{m}"] = parents(c.assignment, prototypes[m - 1].assignment).numpy()
    write_npz(path / FILE, arrays)


def has_prototypes(path: Path) -> bool:
    """Whether the run folder has prototypes.npz."""
    return (path / FILE).exists()


def read_prototypes(path: Path, granularities: int) -> list[Prototypes]:
    """The prototypes of each granularity, coarse to fine."""
    arrays = _read(path)
    return [
        Prototypes(*(torch.from_numpy(arrays[f"{name}_{m}"]) for name in PROTOTYPE_FIELDS))
        for m in range(granularities)
    ]


def read_parents(path: Path, granularities: int) -> list[Tensor]:
    """For each granularity but the coarsest, the index of each prototype's parent in the next coarser one."""
    arrays = _read(path)
    return [torch.from_numpy(arrays[f"parent_{m}"]) for m in range(1, granularities)]


def _read(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path / FILE) as arrays:
        return dict(arrays)


def write_assignments(path: Path, epoch: int, prototypes: Sequence[Prototypes]) -> None:
    """Write assignments/EPOCH.npz: the prototype of each image at each granularity in epoch EPOCH, counted from 1."""
    arrays = {f"assignment_{m}": c.assignment.cpu().numpy().astype(np.int32) for m, c in enumerate(prototypes)}
    write_npz(_assignments(path, epoch), arrays)


def read_assignments(path: Path, epoch: int) -> list[NDArray[np.int32]]:
    """The assignments of an epoch, counted from 1: (n,) for each granularity; an empty list for epoch 0."""
    if epoch == 0:
        return []
    with np.load(_assignments(path, epoch)) as arrays:
        return [arrays[f"assignment_{m}"] for m in range(len(arrays.files))]


def _assignments(path: Path, epoch: int) -> Path:
    return path / "assignments" / f"{epoch:04d}.npz"
