"""The run folder: all that training hands on. Everything after training reads it through `Run`."""

import copy
import csv
import functools
import hashlib
import importlib.util
import json
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from protonce.config import ARCHITECTURE, Resolved, Settings
from protonce.data import named
from protonce.data.loader import Loader
from protonce.data.sources import Data, Source, open_source
from protonce.data.views import ImageViews, Views
from protonce.encoder import Encoder, build
from protonce.errors import UserError
from protonce.features import FeatureCache, Kind
from protonce.files import csv_text, write_npz, write_whole
from protonce.health import Verdict, verdict
from protonce.kmeans import Engine
from protonce.migration import migrated
from protonce.progress import Steps
from protonce.prototypes import Prototypes, assign, parents

PACKAGES = ("protonce", "torch", "torchvision", "timm", "lightning-fabric", "faiss-cpu", "numpy", "pillow")


@dataclass(frozen=True)
class Embedding:
    """What `run.embed` gives: one row an image."""

    names: list[str]
    features: NDArray[np.float32]  # (n, D) pooled features of the query encoder's backbone
    prototypes: list[NDArray[np.int64]]  # for each granularity the nearest prototype, (n,); none: the run has none
    distances: list[NDArray[np.float32]]  # and the cosine distance to it, (n,)


class Run:
    """A run folder, finished or not."""

    def __init__(self, path: str | Path, encoder: nn.Module | None = None, views: Views | None = None) -> None:
        self.path = Path(path)
        self._backbone, self._views = encoder, views
        config = self.path / "config.yaml"
        if not config.exists():
            raise UserError(f"{path} is not a run folder: it has no config.yaml")
        try:
            self.config: dict[str, Any] = migrated(yaml.safe_load(config.read_text()))
            common = Settings.names()
            chosen = self.config["settings"]
            self.settings = Resolved(**{name: value for name, value in chosen.items() if name in common})
            self.options = {name: value for name, value in chosen.items() if name not in common}  # of the system
        except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError):
            raise UserError(f"{path} is not a run folder of this version: its config.yaml is another's") from None

    @property
    def finished(self) -> bool:
        """Whether training has ended and left an encoder."""
        return (self.path / "encoder.safetensors").exists()

    @property
    def imported(self) -> str:
        """The file the encoder was imported from; empty: it was trained here."""
        return str(self.config.get("imported", ""))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: one an epoch that has ended."""
        file = self.path / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be half-written

    @functools.cached_property
    def images(self) -> tuple[list[str], list[str] | None]:
        """Names of the images the run was trained on, and their labels, where the data had them."""
        with (self.path / "images.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = list(csv.DictReader(file))
        labels = [row["label"] for row in rows]
        return [row["name"] for row in rows], labels if any(labels) else None

    @property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """What `protonce evaluate` kept in evaluations/, by the name of the file."""
        found = {}
        for file in sorted((self.path / "evaluations").glob("[!.]*.json")):  # hidden ones are not finished
            try:
                found[file.stem] = dict(json.loads(file.read_text()))
            except (ValueError, TypeError):
                raise UserError(f"{file} is no evaluation, or not a whole one; remove it, or evaluate again") from None
        return found

    @property
    def health(self) -> Verdict:
        """How the run goes, or went, in words: by signals that need no labels.

        Raises:
            UserError: no epoch has ended yet.
        """
        records = self.metrics
        if not any("effective_rank" in record for record in records):  # early versions did not look
            raise UserError(f"no epoch of {self.path} has ended yet; continue it with --resume")
        return verdict(records, self.terms, self.settings.dim)

    @property
    def title(self) -> str:
        """What people call the system."""
        return str(self.config["system"]["title"])

    @property
    def terms(self) -> list[str]:
        """Names of the terms of its loss, each a number in metrics.jsonl."""
        return list(self.config["system"]["terms"])

    @property
    def uses_labels(self) -> bool:
        """Whether the system was trained with the labels of the images."""
        return bool(self.config["system"].get("labels"))

    @property
    def recorded_epochs(self) -> list[int]:
        """The epochs (from 1) that were clustered, for their M-steps or for the record."""
        return [record["epoch"] for record in self.metrics if "clusters" in record]

    @functools.cached_property
    def encoders(self) -> tuple[Encoder, Encoder]:
        """The query encoder f_θ and its momentum twin f_θ', in eval mode."""
        self._check_finished()
        card = json.loads((self.path / "encoder.json").read_text())
        if card["own_backbone"]:
            if self._backbone is None:
                raise UserError(f"the run {self.path} was trained with an encoder of its own; pass it as encoder=")
            query = Encoder(self._backbone, card["feature_dim"], self.settings.head, self.settings.dim)
        else:
            query = build(self.settings)
        twin = Encoder(copy.deepcopy(query.backbone), card["feature_dim"], self.settings.head, self.settings.dim)
        state = load_file(self.path / "encoder.safetensors")
        for name, encoder in (("query", query), ("momentum", twin)):
            part = {k.removeprefix(name + "."): v for k, v in state.items() if k.startswith(name + ".")}
            encoder.load_state_dict(part)
            encoder.eval()
        return query, twin

    def _check_finished(self) -> None:
        if not self.finished:
            raise UserError(f"the run {self.path} has not ended; continue it with --resume")

    @functools.cached_property
    def encoder_hash(self) -> str:
        """Tells these weights from all others."""
        self._check_finished()
        with (self.path / "encoder.safetensors").open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @property
    def own(self) -> bool:
        """Whether encoder or views are the user's own, given in Python."""
        data = self.config["data"]
        return bool(data["own_encoder"] or data["own_views"])

    @property
    def has_prototypes(self) -> bool:
        """Whether there are any: an encoder from elsewhere comes without."""
        return (self.path / "prototypes.npz").exists()

    @functools.cached_property
    def prototypes(self) -> list[Prototypes]:
        """The prototypes of each granularity, coarse to fine, as they are at the end of training."""
        arrays = self._prototype_arrays()
        return [
            Prototypes(*(torch.from_numpy(arrays[f"{name}_{m}"]) for name in PROTOTYPE_FIELDS))
            for m in range(len(self.settings.clusters))
        ]

    @functools.cached_property
    def parents(self) -> list[Tensor]:
        """For each granularity but the coarsest: the next coarser prototype that holds most of each one's members."""
        arrays = self._prototype_arrays()
        return [torch.from_numpy(arrays[f"parent_{m}"]) for m in range(1, len(self.settings.clusters))]

    def _prototype_arrays(self) -> dict[str, NDArray[Any]]:
        path = self.path / "prototypes.npz"
        if not path.exists() and self.imported:
            raise UserError(f"{self.path} was imported without images, so it has no prototypes; import it with --data")
        if not path.exists():
            self._check_finished()
        with np.load(path) as file:
            return dict(file)

    def loader(
        self, data: Data, part: str = "train", views: Views | None = None, view_seed: int | None = None
    ) -> Loader:
        """The images of DATA, prepared as in training, or for other views, drawn by the run's seed or another."""
        source = open_source(data, part, self.settings.seed)
        if self.config["data"]["own_views"] and self._views is None:
            raise UserError(f"the run {self.path} was trained with views of its own; pass them as views=")
        views = views or self._views or ImageViews(self.settings)
        seed = self.settings.seed if view_seed is None else view_seed
        return Loader(source, views, seed=seed, workers=self.settings.workers, device=self.device)

    @property
    def device(self) -> str:
        """The device the run was trained on, or the CPU where that one is not there."""
        has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        return self.settings.device if has.get(self.settings.device) else "cpu"

    @property
    def kmeans_engine(self) -> Engine:
        """The engine the run was trained with, or torch where faiss is not there."""
        return self.settings.kmeans_engine if importlib.util.find_spec("faiss") else "torch"

    def source(self, data: Data | None = None) -> Source:
        """The images the run was trained on, opened again.

        Args:
            data: where they are now; None: where they were.

        Raises:
            UserError: they were given in Python, or are no longer there or no longer what they were.
        """
        before = self.config["data"]
        if self.imported and not before["source"]:
            raise UserError(
                f"{self.path} was imported without images; name some with --train, or import it with --data"
            )
        if data is None:
            data = str(before["source"])
            if data != "builtin" and named.parse(data) is None and not Path(data).exists():
                raise UserError(
                    f"the images of {self.path} ({data}) are not on this disk; name them (--data, or --train)"
                )
        source = open_source(data, "train", self.settings.seed, self.settings.limit)
        if source.fingerprint != before["fingerprint"]:
            was = f"the {before['images']:,} images that {self.path} was trained on"
            raise UserError(
                f"{source.spec} holds {len(source):,} images that are not {was}; name those (--data, or --train)"
            )
        return source

    def features(self, data: Data, *kinds: Kind, steps: Steps | None = None) -> list[Tensor]:
        """Features of each kind for every image of DATA; (n, D) each. Computed once and kept in RUN/features.

        Args:
            data: images; the training part of a data set that has parts.
            kinds: "backbone", pooled features of the query encoder's backbone, (n, feature_dim); "query" and
                "momentum", the L2-normalised embeddings of f_θ and f_θ', (n, dim). Prototypes live among the latter.
            steps: reports progress; None: nothing is printed.
        """
        source = open_source(data, "train", self.settings.seed)
        return self.feature_cache.get(source, kinds, steps or Steps(quiet=True))

    @property
    def feature_cache(self) -> FeatureCache:
        """The cache in RUN/features. It keeps nothing for an encoder or views of the user's own."""
        s = self.settings
        return FeatureCache(
            folder=None if self.own or self._views is not None else self.path / "features",
            encoder_hash=self.encoder_hash,
            preparation=json.dumps([s.image_size, s.plain_resize, s.mean, s.std]),
            encoders=lambda: self.encoders,
            loader=self.loader,
        )

    def assign(self, data: Data) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """For each granularity: the nearest prototype of each image, and the cosine distance to it.

        k-means compares with the means before they are normalised, so a few training images may be nearest to
        another prototype than the one in `run.prototypes[m].assignment`.
        """
        return self._assign(*self.features(data, "momentum"))

    def _assign(self, embeddings: Tensor) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        found = [assign(embeddings, c) for c in self.prototypes]
        return [(which.numpy(), distance.numpy()) for which, distance in found]

    def embed(self, data: Data) -> Embedding:
        """Features, prototypes and distances of every image of DATA."""
        source = open_source(data, "train", self.settings.seed)
        kinds: list[Kind] = ["backbone", "momentum"] if self.has_prototypes else ["backbone"]
        features, *embeddings = self.features(source, *kinds)
        assigned = self._assign(*embeddings) if self.has_prototypes else []
        return Embedding(
            names=source.names,
            features=features.numpy(),
            prototypes=[which for which, _ in assigned],
            distances=[distance for _, distance in assigned],
        )


PROTOTYPE_FIELDS = ("centroids", "means", "assignment", "concentration")


def load(path: str | Path, encoder: nn.Module | None = None, views: Views | None = None) -> Run:
    """Open a run folder; `encoder` and `views` where it was trained with the user's own."""
    return Run(path, encoder, views)


# Writing, by training only.


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """While this lasts no other process trains into the folder. Its lock ends with the process, however that ends.

    Raises:
        UserError: one does.
    """
    path.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path / ".lock", timeout=0):
            yield
    except Timeout:
        raise UserError(f"another process is training into {path}; wait for it, or choose another folder") from None


def create(path: Path, source: Source | None, own: Mapping[str, bool], config: Mapping[str, Any]) -> None:
    """Lay out a new run folder: what is about to be trained, on what; or what was imported, maybe without images.

    Args:
        path: of the folder.
        source: the images; None: there are none.
        own: whether encoder, views and system are the user's own.
        config: what config.yaml says of the training: recipe, system, and settings as asked for and as resolved.
    """
    path.mkdir(parents=True, exist_ok=True)
    names, skipped = (source.names, source.skipped) if source else ([], [])
    rows = zip(range(len(names)), names, (source and source.labels) or [""] * len(names), strict=True)
    write_whole(path / "images.csv", csv_text(("index", "name", "label"), rows))
    write_whole(path / "skipped.csv", csv_text(("name", "reason"), ((s.name, s.reason) for s in skipped)))
    data = {
        "source": source.place or source.spec if source else "",
        "images": len(names),
        "fingerprint": source.fingerprint if source else "",
        "identity": source.identity if source else "",
        **own,
    }
    about = {**config, "data": data, "versions": _versions(), "git": _git_sha()}
    write_whole(path / "config.yaml", yaml.safe_dump(about, sort_keys=False))


def finish(path: Path, query: Encoder, twin: Encoder, own_backbone: bool, settings: Resolved) -> None:
    """Leave the encoder, last of all: where it is, the run has ended."""
    card = {
        "own_backbone": own_backbone,
        "feature_dim": twin.feature_dim,
        **{name: getattr(settings, name) for name in ARCHITECTURE},
    }
    write_whole(path / "encoder.json", json.dumps(card, indent=2) + "\n")
    both = {"query": query.state_dict(), "momentum": twin.state_dict()}
    tensors = {f"{name}.{k}": v for name, state in both.items() for k, v in state.items()}
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in sorted(tensors.items())}
    write_whole(path / "encoder.safetensors", safetensors_bytes(tensors))


def write_prototypes(path: Path, prototypes: Sequence[Prototypes]) -> None:
    """prototypes.npz: each granularity, coarse to fine, and the parent of each finer prototype."""
    arrays: dict[str, Any] = {}
    for m, c in enumerate(prototypes):
        arrays |= {f"{name}_{m}": getattr(c, name).cpu().numpy() for name in PROTOTYPE_FIELDS}
        if m > 0:
            arrays[f"parent_{m}"] = parents(c.assignment, prototypes[m - 1].assignment).numpy()
    write_npz(path / "prototypes.npz", arrays)


def write_assignments(path: Path, epoch: int, prototypes: Sequence[Prototypes]) -> None:
    """assignments/EPOCH.npz: the prototype of each image at each granularity, as epoch EPOCH (from 1) used it."""
    arrays = {f"assignment_{m}": c.assignment.cpu().numpy().astype(np.int32) for m, c in enumerate(prototypes)}
    write_npz(path / "assignments" / f"{epoch:04d}.npz", arrays)


def read_assignments(path: Path, epoch: int) -> list[NDArray[np.int32]]:
    """What `write_assignments` wrote for this epoch; nothing for epoch 0, before the first."""
    file = path / "assignments" / f"{epoch:04d}.npz"
    if epoch == 0:
        return []
    with np.load(file) as arrays:
        return [arrays[f"assignment_{m}"] for m in range(len(arrays.files))]


def append_skipped(path: Path, name: str, reason: str) -> None:
    """A line of skipped.csv, for a file that could be read when the run began; once."""
    file = path / "skipped.csv"
    before = file.read_text(encoding="utf-8", errors="surrogateescape")
    line = csv_text((name, reason), [])
    if line not in before:
        with file.open("a", encoding="utf-8", errors="surrogateescape", newline="") as opened:  # other ranks append too
            opened.write(line)


def append_metrics(path: Path, record: Mapping[str, object]) -> None:
    """A line of metrics.jsonl."""
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(_rounded(record)) + "\n")


def _rounded(value: Any) -> Any:
    """Six digits: more would say nothing, and a log should be readable."""
    if isinstance(value, Mapping):
        return {name: _rounded(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def cut_metrics(path: Path, epochs: int) -> None:
    """Forget what was logged after the first `epochs` epochs: it will be trained again."""
    file = path / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    kept = [line for line in lines if _epoch_of(line) <= epochs]
    write_whole(file, "".join(line + "\n" for line in kept))


def _epoch_of(line: str) -> float:
    try:
        return int(json.loads(line)["epoch"])
    except (ValueError, KeyError):  # a line that was being written when the run was killed
        return float("inf")


def hardly_begun(path: Path) -> bool:
    """Whether the folder holds no more than what `create` writes before config.yaml: a run killed at once."""
    return {p.name for p in path.iterdir() if not p.name.startswith(".")} <= {"images.csv", "skipped.csv"}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git_sha() -> str | None:
    """The commit of protonce's own checkout, where it runs from one."""
    here = Path(__file__)
    try:
        tracked = ["git", "-C", str(here.parent), "ls-files", "--error-unmatch", here.name]
        subprocess.run(tracked, check=True, capture_output=True)
        head = ["git", "-C", str(here.parent), "rev-parse", "HEAD"]
        return subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
