"""Features of a run's encoders, computed once for each set of images and kept in RUN/features."""

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor, nn

from protonce.data.sources import Source
from protonce.features import extract
from protonce.files import write_whole
from protonce.progress import Steps
from protonce.run import Run

Kind = Literal["backbone", "query", "momentum"]
WORDS: dict[Kind, str] = {
    "backbone": "pooled backbone features of the query encoder, plain views",
    "query": "embeddings of the query encoder, plain views",
    "momentum": "embeddings of the momentum encoder, plain views",
}


def frozen(run: Run, source: Source, kinds: Sequence[Kind], steps: Steps) -> list[Tensor]:
    """Features of each kind for every image; (n, D) each. What is not kept yet is computed in one pass.

    Of an encoder or views of the user's own nothing is kept: nobody can tell whether they are still the same.
    """

    def compute(missing: Sequence[Kind]) -> dict[Kind, Tensor]:
        with steps.doing(f"features of {len(source):,} images of {source.spec}", len(source)) as seen:
            return _compute(run, source, missing, seen)

    if run.own:
        found = compute(kinds)
        return [found[kind] for kind in kinds]
    paths = {kind: _path(run, source, kind) for kind in kinds}
    (run.path / "features").mkdir(exist_ok=True)
    with FileLock(run.path / "features" / ".lock"):  # another evaluation of the run may want the same
        missing = [kind for kind in kinds if not paths[kind].exists()]
        for kind, features in (compute(missing) if missing else {}).items():
            write_whole(paths[kind], functools.partial(np.save, arr=features.numpy()))
    return [torch.from_numpy(np.load(paths[kind], mmap_mode="c")) for kind in kinds]  # read as far as it is needed


def is_kept(run: Run, source: Source, kind: Kind) -> bool:
    """Whether these features need not be computed any more."""
    return not run.own and _path(run, source, kind).exists()


def _compute(run: Run, source: Source, kinds: Sequence[Kind], seen: Callable[[int], None]) -> dict[Kind, Tensor]:
    loader = run.loader(source)
    query, twin = (encoder.to(loader.device) for encoder in run.encoders)
    width = {"backbone": query.feature_dim, "query": run.settings.dim, "momentum": run.settings.dim}

    def encode(x: Tensor) -> Tensor:
        features = query.features(x) if {"backbone", "query"} & set(kinds) else x  # once for both
        ways: dict[Kind, Callable[[], Tensor]] = {
            "backbone": lambda: features,
            "query": lambda: query.embed(features),
            "momentum": lambda: twin(x),
        }
        return torch.cat([ways[kind]() for kind in kinds], dim=1)

    with Unchanged(query), Unchanged(twin):
        encoded = extract(encode, loader, seen=seen)
    return dict(zip(kinds, encoded.split([width[kind] for kind in kinds], dim=1), strict=True))


def _path(run: Run, source: Source, kind: Kind) -> Path:
    """Named after the encoder, the images in their order, and how they are prepared."""
    s = run.settings
    prepared = json.dumps([s.image_size, s.plain_resize, s.mean, s.std])
    digest = hashlib.sha256("\0".join([run.encoder_hash, source.identity, prepared]).encode()).hexdigest()
    return run.path / "features" / f"{digest[:16]}-{kind}.npy"


class Unchanged:
    """While this lasts a frozen encoder stays what it is, to the bit."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __enter__(self) -> None:
        self.before = _digest(self.module)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and _digest(self.module) != self.before:
            raise AssertionError("the backbone was to be frozen, and its weights or statistics have changed")


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
