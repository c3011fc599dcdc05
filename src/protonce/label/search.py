"""`protonce search`: the images of a run that are most similar to photos, to a prototype, or to those of a label."""

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from protonce.data.pictures import Pixels, as_pixels, decode
from protonce.data.sources import Data, Source
from protonce.errors import UserError, one_line
from protonce.evaluate.knn import neighbours
from protonce.features import extract
from protonce.files import csv_text, write_whole
from protonce.label.index import Index, open_index
from protonce.label.labels_file import BETWEEN, Labels
from protonce.progress import Steps
from protonce.run import Run

Photo = str | Path | Image.Image | Pixels


@dataclass(frozen=True)
class Hit:
    """An image that was found."""

    query: str
    rank: int  # from 1
    name: str
    similarity: float  # cosine
    label: str
    file: str


class Photos:
    """Photos as a data set: image files, Pillow images or uint8 arrays, which are called photo 1, photo 2 and so on.

    Raises:
        UserError: one of them cannot be read.
    """

    def __init__(self, photos: Sequence[Photo]) -> None:
        files = [Path(photo) if isinstance(photo, str | Path) else None for photo in photos]
        self.names = [f"photo {i + 1}" if path is None else str(path) for i, path in enumerate(files)]
        self.images = [
            _pixels(name, photo) if path is None else _read(path)
            for name, photo, path in zip(self.names, photos, files, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.images)

    def load(self, i: int) -> Pixels:
        """The pixels of photo i."""
        return self.images[i]


def _pixels(name: str, photo: Photo) -> Pixels:
    found = as_pixels(photo)
    if found is None:
        raise UserError(
            f"{name} is {type(photo).__name__}; it must be a path, a Pillow image or a uint8 array (h, w, 3)"
        )
    return found


def _read(path: Path) -> Pixels:
    try:
        with path.open("rb") as file:
            return decode(file).pixels
    except Exception as error:  # a missing file, a damaged one: many kinds of errors
        reason = getattr(error, "strerror", None) or one_line(str(error), 200) or type(error).__name__
        raise UserError(f"{path} cannot be read as an image: {reason}") from None


@dataclass(frozen=True)
class Searched:
    """The images of a run, to search among.

    Attributes:
        run: with an encoder.
        source: its images.
        labels: of some of them.
        steps: reports progress.
    """

    run: Run
    source: Source
    labels: Labels
    steps: Steps

    def like_photos(self, photos: Photos, top: int) -> list[Hit]:
        """The images that are most similar to each photo, by pooled features less their mean."""
        encoder = self.run.encoders[0].to(self.run.device).eval()
        query = extract(encoder.features, self.run.loader(photos))  # (q, D)
        return self._hits(photos.names, *self.index.search(query, top))

    def like_prototype(self, granularity: int, which: int, top: int) -> list[Hit]:
        """The images that are closest to a prototype, by embeddings of the momentum encoder.

        Raises:
            UserError: there is no such prototype.
        """
        levels = self.run.prototypes
        if not 0 <= granularity < len(levels):
            raise UserError(
                f"--prototype {granularity}:{which}: granularities are 0 to {len(levels) - 1}, coarse to fine"
            )
        centroids = levels[granularity].centroids
        if not 0 <= which < len(centroids):
            raise UserError(
                f"--prototype {granularity}:{which}: prototypes of {granularity} are 0 to {len(centroids) - 1}"
            )
        (known,) = self.run.features(self.source, "momentum", steps=self.steps)
        return self._hits([f"{granularity}:{which}"], *neighbours(known, centroids[which, None], top))

    def like_label(self, label: str, top: int) -> list[Hit]:
        """The images that are most similar to the mean of those with a label, which are left out.

        Raises:
            UserError: no image has the label.
        """
        own = [i for i, labels in self.labels.items() if label in labels]
        if not own:
            known_labels = sorted({text for labels in self.labels.values() for text in labels})
            raise UserError(
                f"no image is labelled {label!r:.80}; labels: {one_line(', '.join(known_labels), 300) or 'none'}"
            )
        index = self.index
        query = index.x[own].mean(dim=0, keepdim=True) + index.mean
        similarity, found = index.search(query, top + len(own))
        others = ~torch.isin(found[0], torch.tensor(own))
        return self._hits([label], similarity[:, others][:, :top], found[:, others][:, :top])

    @functools.cached_property
    def index(self) -> Index:
        """Of the images' features."""
        return open_index(self.run, self.source, self.steps)

    @property
    def index_recall(self) -> float:
        """Share of the ten nearest images that a search by photos or label finds; 1 if no index was needed."""
        return self.index.recall if "index" in vars(self) else 1.0

    def _hits(self, queries: Sequence[str], similarity: Tensor, found: Tensor) -> list[Hit]:
        files = self.source.files or [""] * len(self.source)
        return [
            Hit(
                query,
                rank + 1,
                self.source.names[i],
                round(value, 4),
                BETWEEN.join(self.labels.get(i, ())),
                str(files[i]),
            )
            for query, row, values in zip(queries, found.tolist(), similarity.tolist(), strict=True)
            for rank, (i, value) in enumerate(zip(row, values, strict=True))
        ]


def open_search(run: Run, labels: Labels | None = None, data: Data | None = None, quiet: bool = False) -> Searched:
    """Open the images of a run to search among.

    Args:
        run: with an encoder.
        labels: of some images; None: those of their folders, if they have any.
        data: the images of the run, if they have moved.
        quiet: print nothing.
    """
    source = run.source(data)
    if labels is None:
        labels = {i: (label,) for i, label in enumerate(source.labels or []) if label}
    return Searched(run, source, labels, Steps(quiet))


def write_hits(hits: Sequence[Hit], out: Path) -> None:
    """Write what was found as .json or .csv."""
    if out.suffix == ".json":
        write_whole(out, json.dumps([asdict(hit) for hit in hits], indent=1) + "\n")
    else:
        header = [field.name for field in fields(Hit)]
        write_whole(out, csv_text(header, [list(asdict(hit).values()) for hit in hits]))
