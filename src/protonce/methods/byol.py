"""BYOL (Grill et al., 2020): predict the twin's projection of the other view, without negatives."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protonce.config import Resolved
from protonce.context import Progress
from protonce.data.views import ViewSpec
from protonce.encoder import Encoder
from protonce.methods.base import Batch, Setup, System, Term
from protonce.methods.options.byol import BYOLOptions
from protonce.momentum import rising_momentum, twin_of, update_twin


class BYOL(System):
    """Online network f_θ, g_θ with predictor q_θ, and target network f_ξ, g_ξ, its twin."""

    Options = BYOLOptions
    terms: ClassVar[tuple[str, ...]] = ("prediction",)
    momentum: Encoder

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.momentum = twin_of(self.query)  # ξ = θ
        dim, hidden = self.query.dim, self.options.predictor
        self.predictor = nn.Sequential(  # q_θ, appendix B
            nn.Linear(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, dim)
        )

    @classmethod
    def views(cls, settings: Resolved, options: BYOLOptions) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """T and T', of which the second is blurred less and solarised (appendix B)."""
        return ViewSpec("query"), ViewSpec("key", blur_p=options.second_blur_p, solarise_p=options.second_solarise_p)

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:  # noqa: ARG002
        """L + L~ (eq. 2, and the same with the views exchanged)."""
        prediction = self.prediction_term(batch, self.projections(batch))
        return prediction.loss, {"prediction": prediction}

    def projections(self, batch: Batch) -> list[Tensor]:
        """z_θ = g_θ(f_θ(x)) of both views, not normalised; (b, d) each."""
        return [self.query.project(self.query.features(view)) for view in batch.views]

    def prediction_term(self, batch: Batch, projections: list[Tensor]) -> Term:
        """L + L~. It has no chance level: the loss of a collapsed encoder is 0."""
        p, p_ = (self.predict(z) for z in projections)  # q_θ(z_θ), (b, d) each
        with torch.no_grad():
            z, z_ = (self.momentum(view) for view in batch.views)  # z'_ξ, (b, d) each
        return Term(regression_loss(p, z_) + regression_loss(p_, z))

    def predict(self, z: Tensor) -> Tensor:
        """q_θ(z_θ), (b, d), with batch norm over the whole batch, as published."""
        whole: Tensor = self.predictor(self.context.gather(z))  # (B, d)
        return self.context.part(whole)

    def after_step(self, progress: Progress) -> None:
        """ξ = τ ξ + (1 - τ) θ, where τ rises to 1 (eq. 1, and section 3.1)."""
        update_twin(self.query, self.momentum, rising_momentum(self.options.twin_momentum, progress))


def regression_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of normalised vectors, eq. 2: 2 - 2 cos, averaged over the batch.

    Args:
        prediction: q_θ(z_θ), (B, d).
        target: z'_ξ of the other view, (B, d).
    """
    return 2 - 2 * F.cosine_similarity(prediction, target, dim=1).mean()
