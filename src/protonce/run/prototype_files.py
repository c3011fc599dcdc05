"""prototypes.npz, the prototypes at the end of training, and assignments/EPOCH.npz, the clusters of each epoch."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonce import manifest
from protonce.files import npz_bytes
from protonce.manifest import explain_damage
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
    manifest.write(path, FILE, npz_bytes(arrays))


def has_prototypes(path: Path) -> bool:
    """Whether prototypes.npz was written."""
    return manifest.is_recorded(path, FILE)


def read_prototypes(path: Path, granularities: int) -> list[Prototypes]:
    """The prototypes of each granularity, coarse to fine."""
    with explain_damage(path / FILE):
        arrays = _read(path, FILE)
        return [
            Prototypes(*(torch.from_numpy(arrays[f"{name}_{m}"]) for name in PROTOTYPE_FIELDS))
            for m in range(granularities)
        ]


def read_parents(path: Path, granularities: int) -> list[Tensor]:
    """For each granularity but the coarsest, the index of each prototype's parent in the next coarser one."""
    with explain_damage(path / FILE):
        arrays = _read(path, FILE)
        return [torch.from_numpy(arrays[f"parent_{m}"]) for m in range(1, granularities)]


def _read(path: Path, name: str) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(manifest.read(path, name))) as arrays:
        return dict(arrays)


def write_assignments(path: Path, epoch: int, prototypes: Sequence[Prototypes]) -> None:
    """Write assignments/EPOCH.npz: the prototype of each image at each granularity in epoch EPOCH, counted from 1."""
    arrays = {f"assignment_{m}": c.assignment.cpu().numpy().astype(np.int32) for m, c in enumerate(prototypes)}
    manifest.write(path, assignments_file(epoch), npz_bytes(arrays))


def read_assignments(path: Path, epoch: int) -> list[NDArray[np.int32]]:
    """The assignments of an epoch, counted from 1: (n,) for each granularity; an empty list for epoch 0."""
    if epoch == 0:
        return []
    name = assignments_file(epoch)
    with explain_damage(path / name):
        arrays = _read(path, name)
        return [arrays[f"assignment_{m}"] for m in range(len(arrays))]


def assignments_file(epoch: int) -> str:
    """Name of the file in a run folder; epochs are counted from 1."""
    return f"assignments/{epoch:04d}.npz"
