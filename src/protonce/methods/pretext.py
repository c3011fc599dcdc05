"""What systems share that train a backbone to classify: rotations, puzzles, clusters or labels."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protonce.methods.base import System, Term
from protonce.ties import exceeds


class Pretext(System):
    """A system that classifies pooled features of the backbone.

    It has no projection head: that of the encoder keeps its initial weights. So the embeddings that are clustered for
    the record are a random projection of the features.
    """

    def parameter_groups(self) -> list[dict[str, Any]]:
        """All parameters but those of the projection head."""
        head = {id(p) for p in self.query.head.parameters()}
        return [{"params": [p for p in self.parameters() if p.requires_grad and id(p) not in head]}]


def class_term(scores: Tensor, labels: Tensor) -> Term:
    """Cross-entropy of scores (b, k) with labels (b,), averaged over the rows; its chance level is log k."""
    return Term(F.cross_entropy(scores, labels), math.log(scores.shape[1]), right(scores, labels).float().mean())


def right(scores: Tensor, labels: Tensor) -> Tensor:
    """Whether the score of the label exceeds every other by more than rounding, (b,); scores are (b, k)."""
    own = scores.gather(1, labels[:, None])  # (b, 1)
    others = scores.scatter(1, labels[:, None], -torch.inf)  # (b, k)
    return exceeds(own[:, 0], others.amax(dim=1))
