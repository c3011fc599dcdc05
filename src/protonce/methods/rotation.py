"""RotNet (Gidaris, Singh & Komodakis, 2018): recognise by how much an image is rotated."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from protonce.config import Resolved
from protonce.data.views import ViewSpec
from protonce.methods.base import Batch, Setup, Term
from protonce.methods.options.rotation import RotationOptions
from protonce.methods.pretext import Pretext, class_term

K = 4  # rotations by 0, 90, 180 and 270 degrees


class Rotation(Pretext):
    """F(·|θ): a linear classifier of the K rotations on pooled features."""

    Options = RotationOptions
    terms: ClassVar[tuple[str, ...]] = ("rotation",)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.classifier = nn.Linear(self.query.feature_dim, K)

    @classmethod
    def views(cls, settings: Resolved, options: Any) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """One view, which is then rotated."""
        return (ViewSpec("view"),)

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:  # noqa: ARG002
        """Eq. 3: the mean of -log F^y(g(X|y)|θ) over all K rotations y of every image."""
        (x,) = batch.views
        scores = self.classifier(self.query.features(rotations(x)))  # (K b, K)
        y = torch.arange(K, device=x.device).repeat(len(x))  # (K b,)
        term = class_term(scores, y)
        return term.loss, {"rotation": term}


def rotations(x: Tensor) -> Tensor:
    """g(X|y): views (b, c, s, s) rotated by y 90 degrees, counterclockwise; (K b, c, s, s).

    The rotations of an image follow one another, so that each part of a batch in which batch norm computes its
    statistics has all of them equally often.
    """
    turned = torch.stack([x.rot90(y, dims=(2, 3)) for y in range(K)], dim=1)  # (b, K, c, s, s)
    return turned.flatten(0, 1)
