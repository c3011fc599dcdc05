"""kept_features/EPOCH.npz: V' of some images at each epoch that was clustered (setting `keep_features`)."""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonce import manifest
from protonce.data.sources import random_order
from protonce.files import npz_bytes
from protonce.manifest import explain_damage


class Kept(NamedTuple):
    """Features of some images."""

    images: NDArray[np.int32]  # their indices, sorted, (N,)
    features: NDArray[np.float16]  # v' of each, (N, d)


def kept_images(n: int, keep: int, seed: int) -> NDArray[np.int32]:
    """The images whose features are kept, the same in all epochs: `keep` random ones of n, or all; sorted."""
    return np.sort(random_order(n, "kept features", seed)[:keep]).astype(np.int32)


def write_kept(path: Path, epoch: int, features: Tensor, keep: int, seed: int) -> None:
    """Write kept_features/EPOCH.npz: of V' (n, d) at the beginning of epoch EPOCH, counted from 1, `keep` rows."""
    images = kept_images(len(features), keep, seed)
    rows = features[torch.from_numpy(images).long()].cpu().numpy().astype(np.float16)
    manifest.write(path, kept_file(epoch), npz_bytes({"images": images, "features": rows}))


def read_kept(path: Path, epoch: int) -> Kept:
    """The features that were kept of an epoch, counted from 1.

    Raises:
        UserError: the file is missing or damaged.
    """
    name = kept_file(epoch)
    data = manifest.read(path, name)
    with explain_damage(path / name), np.load(io.BytesIO(data)) as arrays:
        return Kept(arrays["images"], arrays["features"])


def kept_file(epoch: int) -> str:
    """Name of the file in a run folder; epochs are counted from 1."""
    return f"kept_features/{epoch:04d}.npz"
