"""The index of `protonce search`: all images are compared, or of very many the candidates that faiss names.

It is kept in RUN/features beside the features it was made of, and made anew if it is missing or damaged.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from protonce.data.sources import Source, random_order
from protonce.files import write_whole
from protonce.label.lists import inverted_lists
from protonce.progress import Steps
from protonce.run import Run
from protonce.ties import COSINE, highest

FLAT = 1_000_000  # up to so many images all are compared
CANDIDATES = 40  # compared exactly, for each image that is asked for
ASKED = 10  # neighbours of which recall is measured,
MEASURED = 200  # of so many images
BLOCK = 1 << 25  # similarities held at once


@dataclass(frozen=True)
class Index:
    """Images as directions from their mean, to search among.

    Attributes:
        x: unit vectors, (n, D).
        mean: of the features, (D,).
        lists: faiss's inverted lists of product-quantised vectors; None: all images are compared.
        recall: share of the ten nearest images that a search finds.
    """

    x: Tensor
    mean: Tensor
    lists: Any = None
    recall: float = 1.0

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Cosine similarity and index of the k most similar images, most similar first; (q, k') each, k' at most k.

        Args:
            queries: features, (q, D).
            k: how many.
        """
        y = F.normalize(queries - self.mean, dim=1)
        k = min(k, len(self.x))
        return self._all(y, k) if self.lists is None else self._candidates(y, k)

    def _all(self, y: Tensor, k: int) -> tuple[Tensor, Tensor]:
        found = []
        for rows in y.split(max(BLOCK // len(self.x), 1)):
            similarity = (self.x @ rows.T).T.contiguous()  # (b, n); this way a single row is fastest
            position = highest(similarity, k, COSINE, BLOCK)
            found.append((similarity.gather(1, position), position))
        values, positions = zip(*found, strict=True)
        return torch.cat(values), torch.cat(positions)

    def _candidates(self, y: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The nearest by quantised vectors, and of these the nearest exactly."""
        _, near = self.lists.search(y.numpy(), min(CANDIDATES * k, len(self.x)))  # (q, c), -1 where there are no more
        values, positions = [], []
        for row, found in zip(y, torch.from_numpy(near), strict=True):
            images = found[found >= 0].sort().values
            similarity = self.x[images] @ row
            best = highest(similarity[None], min(k, len(images)), COSINE)[0]
            values.append(similarity[best])
            positions.append(images[best])
        shortest = min(map(len, values))
        return torch.stack([v[:shortest] for v in values]), torch.stack([p[:shortest] for p in positions])


def open_index(run: Run, source: Source, steps: Steps) -> Index:
    """The index of a run's images, from the run folder or made anew.

    Args:
        run: with an encoder.
        source: its images.
        steps: reports progress.
    """
    (features,) = run.features(source, "backbone", steps=steps)
    if len(features) <= FLAT or importlib.util.find_spec("faiss") is None:
        return flat_index(features)
    kept = run.feature_cache.path(source, "backbone")
    path = None if kept is None else kept.with_suffix(".ivf")
    index = None if path is None else _read(path, features)
    if index is None:
        with steps.doing(f"index of {len(features):,} images"):
            index = quantised_index(features)
        if path is not None:
            _keep(path, index)
    return index


def flat_index(features: Tensor) -> Index:
    """An index in which all images are compared."""
    mean = features.mean(dim=0)
    return Index(F.normalize(features - mean, dim=1), mean)


def quantised_index(features: Tensor) -> Index:
    """An index of inverted lists and vectors of at most 64 bytes; its recall is measured."""
    flat = flat_index(features)
    n, dim = flat.x.shape
    parts = max(m for m in range(1, 65) if dim % m == 0)
    lists = inverted_lists(flat.x, f"PQ{parts}")
    return Index(flat.x, flat.mean, lists, _recall(flat, lists, random_order(n, "recall", seed=0)[:MEASURED]))


def _recall(flat: Index, lists: Any, images: Any) -> float:
    queries = flat.x[torch.from_numpy(images)] + flat.mean
    _, exact = flat.search(queries, ASKED)
    _, found = Index(flat.x, flat.mean, lists).search(queries, ASKED)
    hits = sum(len({*a} & {*b}) for a, b in zip(exact.tolist(), found.tolist(), strict=True))
    return hits / exact.numel()


def _keep(path: Path, index: Index) -> None:
    """Write the lists, and their recall before them."""
    import faiss

    data = np.array([index.recall]).tobytes() + faiss.serialize_index(index.lists).tobytes()
    try:
        write_whole(path, data)
    except OSError:  # a read-only folder, a full disk: it is only a cache
        return


def _read(path: Path, features: Tensor) -> Index | None:
    """The index of these features; None: it is missing, damaged or of others."""
    import faiss

    try:
        data = path.read_bytes()
        lists = faiss.deserialize_index(np.frombuffer(data[8:], dtype=np.uint8))
    except (OSError, RuntimeError):
        return None
    if (lists.ntotal, lists.d) != tuple(features.shape):
        return None
    flat = flat_index(features)
    return Index(flat.x, flat.mean, lists, float(np.frombuffer(data[:8])[0]))
