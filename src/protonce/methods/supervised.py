"""Supervised: cross-entropy with the labels, the upper bound of tables 1, 6 and 9."""

import math
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from protonce.config import Resolved
from protonce.data.views import ViewSpec
from protonce.methods.base import UNKNOWN, Batch, Setup, Term
from protonce.methods.options.supervised import SupervisedOptions
from protonce.methods.pretext import Pretext, right


class Supervised(Pretext):
    """A linear classifier of the labels on pooled features."""

    Options = SupervisedOptions
    terms: ClassVar[tuple[str, ...]] = ("label",)
    needs_labels: ClassVar[bool] = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.classifier = nn.Linear(self.query.feature_dim, setup.classes)

    @classmethod
    def views(cls, settings: Resolved, options: Any) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """One view."""
        return (ViewSpec("view"),)

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:  # noqa: ARG002
        """Cross-entropy over the images of the whole batch that have a label: a rank may have fewer than another."""
        (x,) = batch.views
        assert batch.labels is not None
        scores = self.context.gather(self.classifier(self.query.features(x)))  # (B, classes)
        term = label_term(scores, self.context.gather(batch.labels))
        return term.loss, {"label": term}


def label_term(scores: Tensor, labels: Tensor) -> Term:
    """Cross-entropy of scores (B, classes) with labels (B,), averaged over those that are known.

    Loss and accuracy are 0 if none is. The chance level is log(classes).
    """
    known = labels != UNKNOWN  # (B,)
    count = known.sum().clamp_min(1)
    loss = F.cross_entropy(scores, labels, ignore_index=UNKNOWN, reduction="sum") / count
    hits = known & right(scores, labels.where(known, 0))  # (B,)
    return Term(loss, math.log(scores.shape[1]), hits.sum() / count)
