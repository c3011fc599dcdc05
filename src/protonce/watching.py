"""`--watch DATA`: kNN and linear accuracy on labelled images while the encoder trains; to look at, not to choose by."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from protonce.callbacks import Callback
from protonce.config import Resolved
from protonce.data.loader import Loader
from protonce.data.sources import Data, open_source, random_order
from protonce.data.views import ImageViews, Views
from protonce.encoder import Encoder
from protonce.errors import UserError
from protonce.evaluate.knn import knn_accuracy
from protonce.evaluate.task import single_labels
from protonce.features import extract

NEIGHBOURS = 20
PENALTY = 0.1  # inverse strength of the linear probe's L2 penalty, as scikit-learn's `C`


class Watch(Callback):
    """Classifies one half of the labelled images by the other half, on frozen features of the query encoder.

    Args:
        data: labelled images that are not trained on.
        every: epochs between two evaluations; there is always one after the last epoch.
        settings: of the run.
        views: the user's own; None: the settings'.

    Raises:
        UserError: the images have no labels, or no two classes have two images each.
    """

    def __init__(self, data: Data, every: int, settings: Resolved, views: Views | None = None) -> None:
        if every < 1:
            raise UserError(f"--watch-every is {every}; it must be at least 1")
        self.source = open_source(data, "test", settings.seed)
        labels = np.array(single_labels(self.source))
        if np.sum(np.unique(labels, return_counts=True)[1] >= 2) < 2:
            raise UserError(f"--watch {self.source.spec} needs at least two classes with two images each")
        self.every, self.settings, self.views = every, settings, views or ImageViews(settings)
        known, asked = halves(labels, settings.seed)
        self.known, self.asked = torch.from_numpy(known), torch.from_numpy(asked)
        self.labels, self.truth = labels[known].tolist(), labels[asked].tolist()

    @functools.cached_property
    def loader(self) -> Loader:
        """Of the images; on rank 0 only, which uses it."""
        return Loader(
            self.source,
            self.views,
            seed=self.settings.seed,
            workers=self.settings.workers,
            device=self.settings.device,
        )

    def on_epoch_end(self, epoch: int, encoder: Encoder, record: Mapping[str, Any]) -> dict[str, float] | None:
        """Accuracies `knn` and `linear`, when they are due."""
        del record
        if epoch % self.every and epoch != self.settings.epochs:
            return None
        encoder.eval()
        features = extract(encoder.features, self.loader)  # (n, D)
        encoder.train()
        known, asked = features[self.known], features[self.asked]
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=PENALTY, max_iter=300))
        probe.fit(known.numpy(), self.labels)
        return {
            "knn": knn_accuracy(known, self.labels, asked, self.truth, k=min(NEIGHBOURS, len(known))),
            "linear": float(probe.score(asked.numpy(), self.truth)),
        }


def halves(labels: NDArray[np.str_], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of two random halves with equally many images of each class, up to one."""
    order = random_order(len(labels), "watch", seed)
    by_class = order[np.argsort(labels[order], kind="stable")]
    return by_class[::2], by_class[1::2]
