"""What systems with a memory bank share: a feature v_i of every image, noise images, and the constant Z."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from protonce import randomness
from protonce.context import Progress
from protonce.losses import accuracy, nce, sample_candidates
from protonce.memory import Bank
from protonce.methods.base import Batch, Setup, System, Term
from protonce.noise_contrast import (
    chance_level,
    log_normaliser,
    noise_contrastive_loss,
    noise_logits,
    sample_for_each,
)


class BankSystem(System):
    """A memory bank with a feature of every image, and noise-contrastive estimation against it."""

    log_z: Tensor  # () log Z, estimated from the first batch; NaN before

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.bank = Bank(self.n, self.query.dim, randomness.generator(self.settings.seed, "bank"))
        self.register_buffer("log_z", torch.tensor(torch.nan))
        self._fresh: tuple[Tensor, Tensor] | None = None  # images (B,) and features (B, d) that are yet to join it

    def remember(self, v: Tensor, index: Tensor) -> None:
        """Let the features v (b, d) of the images `index` (b,) join the bank after the step."""
        self._fresh = self.context.gather(index), self.context.gather(v.detach())

    def after_step(self, progress: Progress) -> None:  # noqa: ARG002
        """v_i = m v_i + (1 - m) v, normalised."""
        if self._fresh is not None:
            self.bank.update(*self._fresh, momentum=self.options.bank_momentum)
        self._fresh = None

    def noise(self, batch: Batch) -> Tensor | None:
        """Noise images of a batch, as `noise_logits` takes them."""
        m, progress = self.options.negatives, batch.progress
        if self.options.noise == "published":
            return sample_for_each(self.n, m, self.settings.seed, progress.epoch, batch.index)  # (b, m)
        drawn = sample_candidates(self.n, m, self.context.generator("noise", progress))  # (m + 1,)
        return None if drawn is None else drawn.to(batch.index.device)

    def instance_term(self, v: Tensor, batch: Batch) -> Term:
        """-log P(i | v) over all n images, exact (Wu et al., 2018, eq. 2 and 3) or by noise-contrastive estimation."""
        if self.options.softmax == "nce":
            return self.nce_term(v, batch, self.noise(batch))
        logits = noise_logits(v, self.bank.features, batch.index, None, self.settings.tau)  # (b, 1 + n), its own once
        return Term(nce(logits), math.log(self.n), accuracy(logits))

    def nce_term(self, v: Tensor, batch: Batch, noise: Tensor | None) -> Term:
        """Noise-contrastive estimation of P(i | v), with Z from the first batch of the training."""
        logits = noise_logits(v, self.bank.features, batch.index, noise, self.settings.tau)  # (b, 1 + m)
        if batch.progress.done == 0:
            self._estimate_z(logits.detach())
        loss = noise_contrastive_loss(logits, self.log_z, self.n)
        return Term(loss, chance_level(logits), accuracy(without_own(logits, batch.index, noise)))

    def _estimate_z(self, logits: Tensor) -> None:
        """Z, the mean of Z_i over the batch; once, where a batch has several terms."""
        each = self.context.gather(log_normaliser(logits, self.n))  # log Z_i, (B,)
        log_z = torch.logsumexp(each, dim=0) - math.log(len(each))
        self.log_z.copy_(torch.where(self.log_z.isnan(), log_z, self.log_z))


def without_own(logits: Tensor, own: Tensor, noise: Tensor | None) -> Tensor:
    """Logits with -inf where a row's own image (b,) was drawn as noise."""
    if noise is None or noise.ndim == 1:  # which is without it
        return logits
    drawn = noise == own[:, None]  # (b, m)
    return logits.masked_fill(F.pad(drawn, (1, 0)), -torch.inf)
