"""Open a run folder, finished or not: its settings, logs, encoders and prototypes, and features of new images."""

import functools
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protonce import manifest
from protonce.data import named
from protonce.data.containers import exists
from protonce.data.loader import Loader
from protonce.data.sources import Data, Source, open_source
from protonce.data.views import ImageViews, Views
from protonce.encoder import Encoder
from protonce.errors import OtherImagesError, UserError
from protonce.features import FeatureCache, Kind
from protonce.files import read_csv
from protonce.health import Verdict, of_clusters, verdict
from protonce.kmeans import Engine
from protonce.manifest import explain_damage
from protonce.progress import Steps
from protonce.prototypes import Prototypes, assign
from protonce.run.config_file import read_config_file
from protonce.run.encoder_file import (
    check_encoders,
    encoder_hash,
    has_encoders,
    read_encoders,
    read_snapshot,
    snapshot_file,
)
from protonce.run.prototype_files import has_prototypes, read_assignments, read_parents, read_prototypes

IMAGES, METRICS = "images.csv", "metrics.jsonl"


@dataclass(frozen=True)
class Embedding:
    """Result of `Run.embed` for n images."""

    names: list[str]
    features: NDArray[np.float32]  # pooled features of the query encoder's backbone, (n, D)
    prototypes: list[NDArray[np.int64]]  # the nearest prototype at each granularity, (n,); empty without prototypes
    distances: list[NDArray[np.float32]]  # cosine distance to that prototype, (n,)


class Run:
    """A run folder, finished or not.

    Args:
        path: the run folder.
        encoder: the user's own backbone, if the run was trained with one.
        views: the user's own views, if the run was trained with them.

    Raises:
        UserError: the folder has no config.yaml, or one that this version cannot read.
    """

    def __init__(self, path: str | Path, encoder: nn.Module | None = None, views: Views | None = None) -> None:
        self.path = Path(path)
        self._backbone, self._views = encoder, views
        self.config, self.settings, self.options = read_config_file(self.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def finished(self) -> bool:
        """Whether training is complete, so that there is an encoder."""
        return has_encoders(self.path)

    @property
    def imported(self) -> str:
        """The file that the encoder was imported from; empty for a trained run."""
        return str(self.config.get("imported", ""))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, one for each finished epoch."""
        if not manifest.is_recorded(self.path, METRICS):
            return []
        data = manifest.read(self.path, METRICS)
        with explain_damage(self.path / METRICS):
            lines = data.decode().splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be incomplete

    @functools.cached_property
    def images(self) -> tuple[list[str], list[str] | None]:
        """Names of the training images, and their labels; None if no image has a label."""
        data = manifest.read(self.path, IMAGES)
        with explain_damage(self.path / IMAGES):
            rows = read_csv(data.decode("utf-8", "surrogateescape"))
            names, labels = [row["name"] for row in rows], [row["label"] for row in rows]
            return names, labels if any(labels) else None

    @property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Results of `protonce evaluate`, by file name without .json."""
        found = {}
        for file in sorted((self.path / "evaluations").glob("[!.]*.json")):  # hidden files are incomplete
            data = manifest.read(self.path, f"evaluations/{file.name}")
            with explain_damage(file):
                found[file.stem] = dict(json.loads(data))
        return found

    @property
    def health(self) -> Verdict:
        """Whether training is healthy, judged by signals that need no labels.

        Raises:
            UserError: no epoch is finished yet.
        """
        records = self.metrics
        if not any("effective_rank" in record for record in records):  # early versions did not record it
            raise UserError(f"{self.path} has no finished epoch yet; continue it with --resume")
        final = None
        if self.finished and self.has_prototypes:
            before = read_assignments(self.path, max(self.recorded_epochs, default=0))
            final = of_clusters([c.assignment for c in self.prototypes], before)
        system = self.config["system"]
        trains, moving = bool(system.get("trains", True)), bool(system.get("moving_targets"))
        return verdict(records, self.terms, self.settings.dim, final, trains=trains, moving=moving)

    @property
    def title(self) -> str:
        """Display name of the system."""
        return str(self.config["system"]["title"])

    @property
    def terms(self) -> list[str]:
        """Names of the loss terms of the system, as in metrics.jsonl."""
        return list(self.config["system"]["terms"])

    @property
    def uses_labels(self) -> bool:
        """Whether the system was trained with labels."""
        return bool(self.config["system"].get("labels"))

    @property
    def recorded_epochs(self) -> list[int]:
        """The epochs, counted from 1, that have recorded clusters."""
        return [record["epoch"] for record in self.metrics if "clusters" in record]

    @property
    def kept_epochs(self) -> list[int]:
        """The recorded epochs of which features are kept: all, or none without the setting `keep_features`."""
        return self.recorded_epochs if self.settings.keep_features else []

    @functools.cached_property
    def encoders(self) -> tuple[Encoder, Encoder]:
        """The query encoder f_θ and the momentum encoder f_θ', in eval mode."""
        self._check_finished()
        return read_encoders(self.path, self.settings, self._backbone)

    @property
    def snapshots(self) -> list[int]:
        """The epochs, counted from 1, after which the query encoder was kept (`snapshot_every`)."""
        epochs = [record["epoch"] for record in self.metrics]
        return [epoch for epoch in epochs if manifest.is_recorded(self.path, snapshot_file(epoch))]

    def snapshot(self, epoch: int) -> Encoder:
        """The query encoder as it was after an epoch of `snapshots`, in eval mode."""
        return read_snapshot(self.path, epoch, self.encoders[0])

    def _check_finished(self) -> None:
        if not self.finished:
            raise UserError(f"{self.path} is not finished; continue it with --resume")

    def check_encoders(self) -> None:
        """Check the files of the encoders of a finished run, without loading them.

        Raises:
            UserError: the run is not finished, or a file is missing or damaged.
        """
        self._check_finished()
        check_encoders(self.path)

    @functools.cached_property
    def encoder_hash(self) -> str:
        """Hash of the weights of both encoders."""
        self._check_finished()
        return encoder_hash(self.path)

    @property
    def own_parts(self) -> tuple[nn.Module | None, Views | None]:
        """The user's own encoder and views, as they were passed."""
        return self._backbone, self._views

    @property
    def own(self) -> bool:
        """Whether encoder or views are the user's own, passed in Python."""
        data = self.config["data"]
        return bool(data["own_encoder"] or data["own_views"])

    @property
    def has_prototypes(self) -> bool:
        """Whether the run has prototypes; an encoder that was imported without images has none."""
        return has_prototypes(self.path)

    @functools.cached_property
    def prototypes(self) -> list[Prototypes]:
        """The prototypes of each granularity, coarse to fine, at the end of training."""
        self._check_prototypes()
        return read_prototypes(self.path, len(self.settings.clusters))

    @functools.cached_property
    def parents(self) -> list[Tensor]:
        """For each granularity but the coarsest, the parent of each prototype, (k,).

        The parent is the prototype of the next coarser granularity that has most of its members.
        """
        self._check_prototypes()
        return read_parents(self.path, len(self.settings.clusters))

    def _check_prototypes(self) -> None:
        if not self.has_prototypes:
            if self.imported:
                raise UserError(f"{self.path} was imported without images and has no prototypes; import it with --data")
            self._check_finished()

    def loader(
        self, data: Data, part: str = "train", views: Views | None = None, view_seed: int | None = None
    ) -> Loader:
        """A loader of the images of `data`.

        Args:
            data: as for `protonce.train`.
            part: the split of a named data set, "train" or "test".
            views: None: the views of the run.
            view_seed: seed of the random views; None: the seed of the run.

        Raises:
            UserError: the data cannot be read, or the run needs the user's own views.
        """
        source = open_source(data, part, self.settings.seed)
        if self.config["data"]["own_views"] and self._views is None:
            raise UserError(f"{self.path} was trained with custom views; pass them as views=")
        views = views or self._views or ImageViews(self.settings)
        seed = self.settings.seed if view_seed is None else view_seed
        return Loader(source, views, seed=seed, workers=self.settings.workers, device=self.device)

    @property
    def device(self) -> str:
        """The device the run was trained on if it is available, otherwise the CPU."""
        has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        return self.settings.device if has.get(self.settings.device) else "cpu"

    @property
    def kmeans_engine(self) -> Engine:
        """The k-means engine the run was trained with if it is installed, otherwise torch."""
        return self.settings.kmeans_engine if importlib.util.find_spec("faiss") else "torch"

    def source(self, data: Data | None = None) -> Source:
        """Open the training images of the run.

        Args:
            data: their current location; None: the location during training.

        Raises:
            UserError: the images were passed in Python, or are missing.
            OtherImagesError: they differ from those of training.
        """
        before = self.config["data"]
        if self.imported and not before["source"]:
            raise UserError(f"{self.path} was imported without images; pass --train, or import it with --data")
        if data is None:
            data = str(before["source"])
            if data != "builtin" and named.parse(data) is None and not exists(Path(data)):
                where = "pass their location with --data or --train"
                raise UserError(f"the training images of {self.path} ({data}) are not available; {where}")
        source = open_source(data, "train", self.settings.seed, self.settings.limit)
        if source.fingerprint != before["fingerprint"]:
            raise OtherImagesError(
                f"the {len(source):,} images of {source.spec} are not the {before['images']:,} images that {self.path} "
                "was trained on; pass those with --data or --train, or sort new images with protonce sort"
            )
        return source

    def features(self, data: Data, *kinds: Kind, steps: Steps | None = None) -> list[Tensor]:
        """Features of each kind for every image; (n, D) each. They are cached in RUN/features.

        Args:
            data: as for `protonce.train`; of a named data set the training split.
            kinds: "backbone", pooled features of the query encoder's backbone, (n, feature_dim); "query" and
                "momentum", the L2-normalised embeddings of f_θ and f_θ', (n, dim). Prototypes are means of the latter.
            steps: reports progress; None: print nothing.
        """
        source = open_source(data, "train", self.settings.seed)
        return self.feature_cache.get(source, kinds, steps or Steps(quiet=True))

    @property
    def feature_cache(self) -> FeatureCache:
        """The cache in RUN/features; disabled for the user's own encoder or views, which may change unnoticed."""
        s = self.settings
        return FeatureCache(
            folder=None if self.own or self._views is not None else self.path / "features",
            encoder_hash=self.encoder_hash,
            preparation=json.dumps([s.image_size, s.plain_resize, s.mean, s.std]),
            encoders=lambda: self.encoders,
            loader=self.loader,
        )

    def assign(self, data: Data) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """For each granularity, the nearest prototype of each image and the cosine distance to it, (n,) each.

        k-means assigns images to means that are not yet normalised, so for a few training images the nearest prototype
        differs from `run.prototypes[m].assignment`.
        """
        return self._assign(*self.features(data, "momentum"))

    def _assign(self, embeddings: Tensor) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        found = [assign(embeddings, c) for c in self.prototypes]
        return [(which.numpy(), distance.numpy()) for which, distance in found]

    def embed(self, data: Data) -> Embedding:
        """Features, nearest prototypes and distances of every image."""
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


def load(path: str | Path, encoder: nn.Module | None = None, views: Views | None = None) -> Run:
    """Open a run folder; for arguments and errors see `Run`."""
    return Run(path, encoder, views)
