"""Estimators with scikit-learn's interface: `PCL` learns from arrays, `Encoder` applies the encoder of a run."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from protonce import randomness
from protonce.assembly import MomentumFeatures, Training, assemble
from protonce.auto import FEWEST_IMAGES
from protonce.data.loader import Loader
from protonce.data.sources import Data, open_source
from protonce.data.views import ImageViews, Samples, Views
from protonce.errors import UserError
from protonce.features import Kind, extract
from protonce.journal import final_prototypes
from protonce.preparation import Request, prepare
from protonce.progress import Reporter
from protonce.prototypes import Prototypes, assign
from protonce.ranks import Ranks
from protonce.run import Run
from protonce.training import fit


class PCL(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Prototypical Contrastive Learning of vectors or images in an array.

    Vectors (n, d) are standardised. Their views have random entries masked and noise added, and the encoder is a
    perceptron with two layers. Images, (n, h, w, 3) or (n, h, w) of type uint8, have the views and the backbone that
    `protonce.train` chooses. Nothing is written to the disk.

    Args:
        n_clusters: number of prototypes, or one for each granularity, coarse to fine.
        epochs: passes over the data.
        hidden: width of the perceptron, and number of features that `transform` returns of vectors.
        mask: share of the entries of a vector that a view masks.
        noise: deviation of the noise in a view, in standard deviations of the data.
        lr: learning rate; None: that of the recipe.
        random_state: seed of weights, views and k-means.
        settings: any other settings and options of `protonce.train`, by name.

    Attributes:
        labels_: the nearest prototype of each row, at the coarsest granularity, (n,).
        hierarchy_: likewise at each granularity, coarse to fine.
        prototypes_: unit vectors in the space of the head, (k, dim), of each granularity.
        encoders_: the query encoder and the momentum encoder.

    >>> from sklearn.datasets import load_digits
    >>> features = PCL(n_clusters=10, random_state=0).fit_transform(load_digits().data)
    """

    def __init__(
        self,
        n_clusters: int | Sequence[int] = 8,
        *,
        epochs: int = 20,
        hidden: int = 128,
        mask: float = 0.3,
        noise: float = 0.1,
        lr: float | None = None,
        random_state: Any = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epochs = epochs
        self.hidden = hidden
        self.mask = mask
        self.noise = noise
        self.lr = lr
        self.random_state = random_state
        self.settings = settings

    def fit(self, X: Any, y: object = None) -> "PCL":  # noqa: ARG002
        """Learn encoder and prototypes from the rows of X; y is ignored."""
        self._check()
        for name in ("n_features_in_", "feature_names_in_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        data, own_views, network = self._images(X), None, None
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if data is None:
            data = validate_data(self, X, dtype=np.float32, ensure_min_samples=FEWEST_IMAGES)
            own_views = VectorViews(data.mean(axis=0), data.std(axis=0), self.mask, self.noise)
            network = _perceptron(data.shape[1], self.hidden, seed)
        try:
            training = self._assemble(data, own_views, network, seed)
        except UserError as error:
            raise ValueError(str(error)) from None
        kept = _Prototypes(training)
        with randomness.preserved(training.settings.device):
            fit(training, kept)
        query, twin = training.system.query, training.system.momentum
        assert twin is not None
        for encoder in (query, twin):
            encoder.eval().cpu().autocast = nullcontext
        self.encoders_ = (query, twin)
        self._views: Views = own_views or ImageViews(training.settings)
        self._final = [c.to("cpu") for c in kept.found]
        self._n_features_out = query.feature_dim
        self.prototypes_ = [c.centroids.numpy() for c in self._final]
        self.hierarchy_ = self._assigned(data)
        self.labels_ = self.hierarchy_[0]
        return self

    def _check(self) -> None:
        if self.hidden < 1 or not 0 <= self.mask <= 1 or self.noise < 0:
            raise ValueError("hidden must be at least 1, mask from 0 to 1, and noise not negative")
        if "method" in (self.settings or {}):
            raise ValueError("settings has a method, and this estimator is PCL; use protonce.train for others")

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Pooled features of the query encoder, (n, `hidden`) of vectors."""
        return self._encode(self._checked(X), 0, embed=False).numpy()

    def predict(self, X: Any) -> NDArray[np.int64]:
        """The nearest prototype of each row, at the coarsest granularity, (n,)."""
        return self._assigned(self._checked(X))[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    @staticmethod
    def _images(X: Any) -> NDArray[np.uint8] | None:
        """X as an array, if it is one of images, or a list of images of the same shape."""
        dimensions = 1 + np.ndim(X[0]) if isinstance(X, list) and X else getattr(X, "ndim", 0)
        return np.asarray(X) if dimensions in (3, 4) else None

    def _assemble(
        self, data: NDArray[Any], own_views: "VectorViews | None", network: nn.Module | None, seed: int
    ) -> Training:
        clusters = [int(k) for k in np.atleast_1d(self.n_clusters)]
        given: dict[str, Any] = {"epochs": self.epochs, "clusters": clusters, "seed": seed, "workers": 0}
        given |= {"device": "cpu"} | ({} if self.lr is None else {"lr": self.lr}) | dict(self.settings or {})
        own = network is not None
        with tempfile.TemporaryDirectory() as folder:  # is asked whether a run is in it
            request = Request(
                Rows(data) if own else data, Path(folder), settings=given, method="pcl", own_encoder=own, own_views=own
            )
            plan = prepare(request, Reporter(quiet=True), Ranks())
            return assemble(plan, Ranks(), network, own_views, Reporter(quiet=True), lambda *_: None)

    def _checked(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        images = self._images(X) if isinstance(self._views, ImageViews) else None
        return validate_data(self, X, dtype=np.float32, reset=False) if images is None else images

    def _encode(self, data: NDArray[Any], which: int, embed: bool) -> Tensor:
        """Embeddings or pooled features by the query encoder, 0, or the momentum encoder, 1."""
        encoder = self.encoders_[which]
        try:
            source = open_source(data if isinstance(self._views, ImageViews) else Rows(data))
        except UserError as error:
            raise ValueError(str(error)) from None
        with torch.no_grad():
            return extract(encoder if embed else encoder.features, Loader(source, self._views))

    def _assigned(self, data: NDArray[Any]) -> list[NDArray[np.int64]]:
        v_ = self._encode(data, 1, embed=True)
        return [assign(v_, c)[0].numpy() for c in self._final]


class Encoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The encoder of a run folder as a transformer, from images to features.

    Args:
        run: a finished run.
        kind: "backbone", pooled features of the query encoder; "query" or "momentum", the embeddings of an encoder.
    """

    def __init__(self, run: str | Path, kind: Kind = "backbone") -> None:
        self.run = run
        self.kind = kind

    @classmethod
    def from_run(cls, run: str | Path, kind: Kind = "backbone") -> "Encoder":
        """The encoder of a run folder; for arguments see the class."""
        return cls(str(run), kind)

    def fit(self, X: object = None, y: object = None) -> "Encoder":  # noqa: ARG002
        """Check that the run has an encoder; it is trained already."""
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is {self.kind!r}; it must be one of {', '.join(get_args(Kind))}")
        Run(self.run).check_encoders()
        return self

    def transform(self, X: Data) -> NDArray[np.float32]:
        """Features of images, (n, D): an array, a folder, or whatever else `protonce.train` takes.

        Raises:
            ValueError: an image cannot be read.
        """
        self.fit()
        source = open_source(X)
        if source.skipped:
            first = source.skipped[0]
            raise ValueError(f"{len(source.skipped):,} images cannot be read, for example {first.name}: {first.reason}")
        return Run(self.run).features(source, self.kind)[0].numpy()

    @property
    def _n_features_out(self) -> int:
        query = Run(self.run).encoders[0]
        return query.feature_dim if self.kind == "backbone" else query.dim

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


class Rows:
    """The rows of an array as a data set."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def load(self, i: int) -> NDArray[np.float32]:
        """Row i, (d,)."""
        row: NDArray[np.float32] = self.rows[i]
        return row


class VectorViews:
    """Views of vectors, standardised: two with masked entries and noise, and a plain one.

    Args:
        mean: of the vectors, (d,).
        deviation: their standard deviation, (d,).
        mask: share of the entries that a view replaces by their mean.
        noise: deviation of the noise.
    """

    def __init__(self, mean: NDArray[np.float32], deviation: NDArray[np.float32], mask: float, noise: float) -> None:
        constant = deviation <= 1e-6 * (np.abs(mean) + 1)
        self.mean = torch.from_numpy(mean)
        self.scale = torch.from_numpy(np.where(constant, 1, deviation).astype(np.float32))
        self.mask, self.noise = mask, noise

    def train(self, samples: Samples) -> tuple[Tensor, ...]:
        """Query and key, (B, d) each."""
        return self._view(samples, "query"), self._view(samples, "key")

    def plain(self, samples: Samples) -> Tensor:
        """The vectors, standardised, (B, d)."""
        x: Tensor = samples.data
        found: Tensor = (x - self.mean.to(x.device)) / self.scale.to(x.device)
        return found

    def _view(self, samples: Samples, name: str) -> Tensor:
        x = self.plain(samples)

        def uniform(purpose: str) -> Tensor:
            return torch.from_numpy(samples.uniform(f"{name} {purpose}", x.shape[1])).to(x)

        normal: Tensor = torch.special.ndtri(uniform("noise").clamp(1e-6, 1 - 1e-6))
        return (x + self.noise * normal).masked_fill(uniform("mask") < self.mask, 0.0)


class _Prototypes:
    """A journal that keeps the prototypes alone."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.found: list[Prototypes] = []

    def e_step(self, *_: object) -> None:
        """Nothing is kept."""

    def step(self, _epoch: object, _batch: object, loss: Tensor, _terms: object) -> None:
        """Check the loss.

        Raises:
            ValueError: it is not finite.
        """
        if not loss.isfinite():
            raise ValueError("the loss became NaN or infinite; choose a smaller lr")

    def epoch(self, *_: object) -> None:
        """Nothing is kept."""

    def end(self, features: MomentumFeatures) -> None:
        """Keep the final prototypes."""
        self.found = final_prototypes(self.training, features)


def _perceptron(d: int, hidden: int, seed: int) -> nn.Module:
    """From vectors (B, d) to features (B, hidden)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(randomness.key(seed, "weights"))
        return nn.Sequential(
            *(nn.Linear(d, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
        )
