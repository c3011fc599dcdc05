"""Features of images: one pass of an encoder over a data set, and the cache of features in a run folder."""

import hashlib
import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor, nn

from protonce.data.loader import Loader
from protonce.data.sources import Source
from protonce.encoder import Encoder
from protonce.files import write_whole
from protonce.progress import Steps

Kind = Literal["backbone", "query", "momentum"]
WORDS: dict[Kind, str] = {
    "backbone": "pooled backbone features of the query encoder, plain views",
    "query": "embeddings of the query encoder, plain views",
    "momentum": "embeddings of the momentum encoder, plain views",
}
BATCH_SIZE = 256
BLOCK = 1 << 20  # bytes read at once


@torch.no_grad()
def extract(
    encode: Callable[[Tensor], Tensor],
    loader: Loader,
    batch_size: int = BATCH_SIZE,
    index: Tensor | None = None,
    seen: Callable[[int], None] = lambda _: None,
) -> Tensor:
    """Features of the plain view of every image, in the order of the images; (n, d) float32 on the CPU.

    Args:
        encode: from views (B, ...) to features (B, d). Its module should be in eval mode.
        loader: gives the images.
        batch_size: images a step; the result does not depend on it.
        index: the images that are asked for, in this order; None: all.
        seen: is told of each batch how many images it had.
    """
    n = len(loader) if index is None else len(index)
    features, done = torch.empty(0), 0
    for samples in loader.plain(batch_size, index):
        batch = encode(loader.views.plain(samples)).float().cpu()  # (B, d)
        if done == 0:
            features = torch.empty(n, batch.shape[1])
        features[done : done + len(batch)] = batch
        done += len(batch)
        seen(len(batch))
    return features


@dataclass(frozen=True)
class FeatureCache:
    """Features of a run's frozen encoders, computed once for each set of images and kept in a folder.

    Nothing is kept for a data set object of the user's own (`Source.own`): its items may change unnoticed.

    Attributes:
        folder: RUN/features; None: keep nothing, as for an encoder or views of the user's own.
        encoder_hash: identifies the weights of both encoders.
        preparation: identifies how images are resized, cropped and normalised.
        encoders: returns the query encoder f_θ and the momentum encoder f_θ', in eval mode.
        loader: returns the loader of a source.
    """

    folder: Path | None
    encoder_hash: str
    preparation: str
    encoders: Callable[[], tuple[Encoder, Encoder]]
    loader: Callable[[Source], Loader]

    def get(self, source: Source, kinds: Sequence[Kind], steps: Steps) -> list[Tensor]:
        """Features of each kind for every image; (n, D) each. Missing kinds are computed in one pass and kept.

        Kept features are memory-mapped. For a subset of a source whose features are kept, rows are taken from those.
        """
        found = self._read(source, kinds)
        if len(found) < len(set(kinds)):
            with self._lock(source):
                found = self._read(source, kinds)  # another process may have computed them in the meantime
                missing = [kind for kind in dict.fromkeys(kinds) if kind not in found]
                for kind, features in (self._compute(source, missing, steps) if missing else {}).items():
                    found[kind] = self.keep(source, kind, features)
        return [found[kind] for kind in kinds]

    def keep(self, source: Source, kind: Kind, features: Tensor) -> Tensor:
        """Write features (n, D) to the folder; return them memory-mapped, or as they are if it is not writable."""
        path = self.path(source, kind)
        if path is None:
            return features.contiguous()
        try:
            write_whole(path, lambda file: _save(file, features))
        except OSError:  # a read-only folder, a full disk: it is only a cache
            return features.contiguous()
        kept = _load(path, len(source))
        return features.contiguous() if kept is None else kept

    def path(self, source: Source, kind: Kind) -> Path | None:
        """The file of these features, named after encoder, images and preparation; None: they are not kept."""
        if self.folder is None or source.own:
            return None
        digest = hashlib.sha256("\0".join([self.encoder_hash, source.identity, self.preparation]).encode())
        return self.folder / f"{digest.hexdigest()[:16]}-{kind}.npy"

    def _read(self, source: Source, kinds: Sequence[Kind]) -> dict[Kind, Tensor]:
        """Those of the kinds that are kept."""
        found = {kind: self._read_one(source, kind) for kind in kinds}
        return {kind: features for kind, features in found.items() if features is not None}

    def _read_one(self, source: Source, kind: Kind) -> Tensor | None:
        path = self.path(source, kind)
        features = None if path is None else _load(path, len(source))
        if features is None and source.subset_of is not None:
            whole, rows = source.subset_of
            features = self._read_one(whole, kind)
            return None if features is None else features[torch.from_numpy(np.ascontiguousarray(rows))]
        return features

    def _lock(self, source: Source) -> AbstractContextManager[object]:
        """A lock, so that two processes do not compute the same features; none if nothing can be written."""
        if self.folder is None or source.own:
            return nullcontext()
        try:
            self.folder.mkdir(exist_ok=True)
            return FileLock(self.folder / ".lock").acquire()
        except OSError:  # a read-only folder, a full disk
            return nullcontext()

    def _compute(self, source: Source, kinds: Sequence[Kind], steps: Steps) -> dict[Kind, Tensor]:
        """Features of each kind in one pass, so that every image is decoded once."""
        query, twin = self.encoders()
        with Unchanged(query), Unchanged(twin):
            backbone = self._read_one(source, "backbone") if "query" in kinds else None
            if backbone is None:
                return self._encode(source, kinds, steps)
            # The head is all that is missing of the query embeddings.
            rest = [kind for kind in kinds if kind != "query"]
            return {"query": _embed(query, backbone), **(self._encode(source, rest, steps) if rest else {})}

    def _encode(self, source: Source, kinds: Sequence[Kind], steps: Steps) -> dict[Kind, Tensor]:
        loader = self.loader(source)
        query, twin = (encoder.to(loader.device) for encoder in self.encoders())
        width: dict[Kind, int] = {"backbone": query.feature_dim, "query": query.dim, "momentum": twin.dim}

        def encode(x: Tensor) -> Tensor:
            features = query.features(x) if {"backbone", "query"} & set(kinds) else x  # once for both
            ways: dict[Kind, Callable[[], Tensor]] = {
                "backbone": lambda: features,
                "query": lambda: query.embed(features),
                "momentum": lambda: twin(x),
            }
            return torch.cat([ways[kind]() for kind in kinds], dim=1)  # (B, sum of the widths)

        with steps.doing(f"features of {len(source):,} images of {source.spec}", len(source)) as seen:
            encoded = extract(encode, loader, seen=seen)
        parts = encoded.split([width[kind] for kind in kinds], dim=1)  # (n, D) each
        return dict(zip(kinds, parts, strict=True))


@torch.no_grad()
def _embed(encoder: Encoder, features: Tensor) -> Tensor:
    """Embeddings of pooled backbone features (n, feature_dim); (n, dim)."""
    device = next(encoder.parameters()).device
    return torch.cat([encoder.embed(part.to(device)).cpu() for part in features.split(BATCH_SIZE)])


def _save(file: BinaryIO, features: Tensor) -> None:
    """Write a .npy, and after it the SHA-256 of all before it, which readers of .npy ignore."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": tuple(features.shape)})
    digest = hashlib.sha256()
    for part in (head.getbuffer(), *(rows.contiguous().numpy().data for rows in features.split(4096))):
        file.write(part)
        digest.update(part)
    file.write(digest.digest())


def _load(path: Path, n: int) -> Tensor | None:
    """Memory-mapped features, (n, D); None if there is no such file, or it is damaged or has another shape."""
    try:
        if not is_intact(path):
            return None
        array = np.lib.format.open_memmap(path, mode="c")
    except Exception:  # numpy raises many kinds for a damaged header
        return None
    return torch.from_numpy(array) if array.dtype == np.float32 and array.ndim == 2 and len(array) == n else None


def is_intact(path: Path) -> bool:
    """Whether a file of features ends with its own SHA-256."""
    if not path.is_file():
        return False
    digest = hashlib.sha256()
    left = path.stat().st_size - digest.digest_size
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, BLOCK))):
            digest.update(block)
            left -= len(block)
        return file.read() == digest.digest()


class Unchanged:
    """Context in which a frozen module must not change.

    Raises:
        AssertionError: on exit, if its parameters or buffers are not what they were, to the bit.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __enter__(self) -> None:
        self.before = _digest(self.module)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and _digest(self.module) != self.before:
            raise AssertionError("the encoder is frozen, but its parameters or buffers have changed")


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
