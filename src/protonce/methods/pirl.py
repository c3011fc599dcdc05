"""PIRL (Misra & van der Maaten, 2020): a representation that does not change when the image becomes a jigsaw puzzle.

"Self-Supervised Learning of Pretext-Invariant Representations". An image I and its nine shuffled patches I^t are both
contrasted with a memory bank, where m_I is a moving average of the representation of I.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protonce import randomness
from protonce.config import Resolved
from protonce.data.views import ViewSpec
from protonce.encoder import fixed_size
from protonce.errors import UserError
from protonce.losses import accuracy
from protonce.methods.bank import BankSystem, without_own
from protonce.methods.base import Batch, Setup, Term
from protonce.methods.options.pirl import PIRLOptions
from protonce.noise_contrast import chance_level, noise_logits

TILES = 3  # patches in a row
PATCHES = TILES**2


class PIRL(BankSystem):
    """The heads f, of the image, and g, of its patches; and the memory bank."""

    Options = PIRLOptions
    terms: ClassVar[tuple[str, ...]] = ("instance", "jigsaw")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if fixed_size(self.settings.backbone) is not None:
            raise UserError(
                f"pirl encodes patches smaller than its images, and {self.settings.backbone} takes images of one size "
                "only; choose a convolutional backbone such as resnet18"
            )
        dim = self.query.dim
        self.patch_head = nn.Linear(self.query.feature_dim, dim)  # g: of each patch,
        self.jigsaw_head = nn.Linear(PATCHES * dim, dim)  # and of all nine in a row

    @classmethod
    def views(cls, settings: Resolved, options: Any) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """The image, and nine patches: of 224 pixels, 64 x 64 of each cell of 85 x 85 of an image of 255 x 255."""
        cell = round(settings.image_size * 85 / 224)
        patch = round(cell * 64 / 85)
        jigsaw = ViewSpec("jigsaw", size=TILES * cell, crop_scale=(0.6, 1.0), tiles=TILES, tile_size=patch)
        return (ViewSpec("query"), jigsaw)

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:  # noqa: ARG002
        """λ L_NCE(m_I, g(v_I^t)) + (1 - λ) L_NCE(m_I, f(v_I)) (eq. 6)."""
        image, patches = batch.views  # (b, 3, s, s), (b, 9, 3, p, p)
        f = self.query(image)  # f(v_I), (b, d)
        g = self.jigsaw(patches, batch)  # g(v_I^t), (b, d)
        noise, weight = self.noise(batch), self.options.jigsaw_weight
        instance, jigsaw = self.contrast(f, batch, noise), self.contrast(g, batch, noise)
        self.remember(f, batch.index)
        return weight * jigsaw.loss + (1 - weight) * instance.loss, {"instance": instance, "jigsaw": jigsaw}

    def jigsaw(self, patches: Tensor, batch: Batch) -> Tensor:
        """Each patch is projected, nine projections in random order are concatenated, and projected; (b, d)."""
        each = self.patch_head(self.query.features(patches.flatten(0, 1))).unflatten(0, (-1, PATCHES))  # (b, 9, d)
        seed, epoch, index = self.settings.seed, batch.progress.epoch, batch.index.cpu().numpy()
        order = randomness.uniform(seed, "jigsaw order", epoch, index, PATCHES).argsort(axis=1)  # (b, 9)
        shuffled = torch.take_along_dim(each, torch.from_numpy(order).to(each.device)[..., None], dim=1)
        return F.normalize(self.jigsaw_head(shuffled.flatten(1)), dim=1)

    def contrast(self, v: Tensor, batch: Batch, noise: Tensor | None) -> Term:
        """L_NCE(m_I, v) of eq. 5; with a constant normaliser, that of InstDisc."""
        if self.options.normaliser == "constant":
            return self.nce_term(v, batch, noise)
        logits = noise_logits(v, self.bank.features, batch.index, noise, self.settings.tau)  # s(v, m) / τ, (b, 1 + N)
        logits = without_own(logits, batch.index, noise)  # D_N has other images only
        return Term(sampled_nce(logits), chance_level(logits), accuracy(logits))


def sampled_nce(logits: Tensor) -> Tensor:
    """-log h(m_I, v) - Σ_I' log(1 - h(m_I', v)) (eq. 5), averaged over the batch.

    h(m, v) = exp(s(m, v) / τ) / Σ exp(s(m', v) / τ), the sum over m_I and the negatives (eq. 4).

    Args:
        logits: s(m, v) / τ, of m_I in column 0, then of the negatives, (b, 1 + N); those at -inf are none.
    """
    log_h = logits.log_softmax(dim=1)  # (b, 1 + N)
    # 1 - h of a negative near 1 is the sum of all other shares; there is at most one such in a row.
    highest = logits[:, 1:].argmax(dim=1, keepdim=True) + 1  # (b, 1)
    rest = log_h.scatter(1, highest, -torch.inf).logsumexp(dim=1)  # log(1 - h) of the highest, (b,)
    others = log_h.scatter(1, torch.cat([torch.zeros_like(highest), highest], dim=1), -torch.inf)
    return (-log_h[:, 0] - rest - torch.log1p(-others.exp()).sum(dim=1)).mean()
