"""What a protocol is given, and what it gives back."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from protonce.data.sources import Source
from protonce.errors import UserError
from protonce.evaluate.drafts import Drafts
from protonce.evaluate.frozen import Kind, frozen
from protonce.progress import Steps
from protonce.run import Run

Metrics = dict[str, Any]  # a number, or mean, std and runs


@dataclass
class Task:
    """A run, labelled images, and what was chosen."""

    run: Run
    train: Source
    test: Source
    options: Any
    steps: Steps
    drafts: Drafts

    def features(self, source: Source, *kinds: Kind) -> list[Tensor]:
        """Frozen features of each kind; (n, D) each."""
        return frozen(self.run, source, kinds, self.steps)

    @property
    def several(self) -> bool:
        """Whether an image may show several classes."""
        return self.train.marks is not None

    @functools.cached_property
    def classes(self) -> list[str]:
        """The classes of the training images, in order."""
        return self.train.marks.classes if self.train.marks is not None else sorted(set(labels_of(self.train)))

    @property
    def eleven_points(self) -> bool:
        """How the data set's own programs average precision."""
        return self.test.marks is not None and self.test.marks.eleven_points

    def codes(self, source: Source) -> NDArray[np.int64]:
        """The class of each image as its position among `classes`; (n,)."""
        return np.searchsorted(np.array(self.classes), np.array(labels_of(source)))

    def marks(self, source: Source) -> NDArray[np.int8]:
        """Which image shows which class, 1 or -1, or 0 for what is difficult to see; (n, classes)."""
        if source.marks is not None:
            return source.marks.values
        shown = self.codes(source)[:, None] == np.arange(len(self.classes))
        return np.where(shown, 1, -1).astype(np.int8)


@dataclass
class Outcome:
    """The numbers of an evaluation, and what they were computed from."""

    metrics: Metrics
    features: str
    settings: dict[str, Any] = field(default_factory=dict)  # what was chosen besides the options
    details: dict[str, Any] = field(default_factory=dict)  # numbers by class or epoch
    notes: list[str] = field(default_factory=list)


def over_draws(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation (n - 1) and values of independent draws."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "std": deviation, "runs": list(values)}


def labels_of(source: Source) -> list[str]:
    """The class of each image.

    Raises:
        UserError: they have none, or several, or some have none.
    """
    if source.marks is not None:
        raise UserError(f"an image of {source.spec} may show several classes; this takes one class an image")
    if source.labels is None:
        raise UserError(f"{source.spec} has no labels: put the images of each class into a folder of its own")
    if "" in source.labels:
        without = source.labels.count("")
        raise UserError(f"{without} images of {source.spec} have no label; label them, or leave them out")
    return source.labels
