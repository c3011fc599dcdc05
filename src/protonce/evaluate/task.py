"""Input and output of an evaluation protocol."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from protonce.data import named
from protonce.data.paper_datasets import is_imagenet
from protonce.data.sources import Source
from protonce.errors import UserError
from protonce.evaluate.drafts import Drafts
from protonce.features import Kind
from protonce.progress import Steps
from protonce.run import Run

Metrics = dict[str, Any]  # a number, or mean, std and runs


@dataclass
class Task:
    """A run, labelled images, and the options of a protocol."""

    run: Run
    train: Source
    test: Source
    options: Any
    steps: Steps
    drafts: Drafts

    def features(self, source: Source, *kinds: Kind) -> list[Tensor]:
        """Frozen features of each kind; (n, D) each."""
        return self.run.features(source, *kinds, steps=self.steps)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several classes."""
        return self.train.marks is not None

    @functools.cached_property
    def classes(self) -> list[str]:
        """Sorted classes of the training images, or those of multi-label data in their own order."""
        return self.train.marks.classes if self.train.marks is not None else sorted(set(single_labels(self.train)))

    @property
    def dataset_name(self) -> str:
        """Name of the training data set: ImageNet if its classes are; empty for the user's other files."""
        if is_imagenet(self.classes):
            return "ImageNet"
        name = named.parse(self.train.spec)
        return name.name if name else ""

    @property
    def eleven_points(self) -> bool:
        """Whether the data set's own evaluation uses 11-point average precision."""
        return self.test.marks is not None and self.test.marks.eleven_points

    def codes(self, source: Source) -> NDArray[np.int64]:
        """Class of each image as an index into `classes`; (n,)."""
        return np.searchsorted(np.array(self.classes), np.array(single_labels(source)))

    def marks(self, source: Source, chosen: NDArray[np.int64] | None = None) -> NDArray[np.int8]:
        """Multi-label targets: 1 present, -1 absent, 0 present but difficult; (n or chosen, classes)."""
        rows = np.arange(len(source)) if chosen is None else chosen
        if source.marks is not None:
            return source.marks.values[rows]
        marks = np.full((len(rows), len(self.classes)), -1, dtype=np.int8)
        marks[np.arange(len(rows)), self.codes(source)[rows]] = 1
        return marks

    def members(self, source: Source) -> list[NDArray[np.int64]]:
        """Indices of the images of each class."""
        if source.marks is not None:
            return [np.flatnonzero(column == 1) for column in source.marks.values.T]
        codes = self.codes(source)
        ends = np.cumsum(np.bincount(codes, minlength=len(self.classes)))
        return np.split(np.argsort(codes, kind="stable"), ends[:-1])


@dataclass
class Outcome:
    """Metrics of an evaluation, and what they were computed from."""

    metrics: Metrics
    features: str
    settings: dict[str, Any] = field(default_factory=dict)  # chosen by the protocol, in addition to the options
    details: dict[str, Any] = field(default_factory=dict)  # metrics per class or epoch
    notes: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)  # options that do not apply to these images
    remarks: dict[str, str] = field(default_factory=dict)  # on single metrics
    left_out: dict[str, int] = field(default_factory=dict)  # classes that were left out, and their training images
    tested: int | None = None  # images tested on; None: all


def over_draws(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation (n - 1; None for a single draw) and values of independent draws."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "std": deviation, "runs": list(values)}


def single_labels(source: Source) -> list[str]:
    """The class of each image.

    Raises:
        UserError: an image has no class, or may have several.
    """
    if source.marks is not None:
        raise UserError(f"images of {source.spec} may have several classes; this needs one class per image")
    if source.labels is None:
        raise UserError(f"{source.spec} has no labels; put the images of each class into a separate folder")
    if "" in source.labels:
        without = source.labels.count("")
        raise UserError(f"{without} images of {source.spec} have no label; label or remove them")
    return source.labels
