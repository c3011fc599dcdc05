"""SimCLR (Chen et al., 2020): contrast each view with all other views of the batch (NT-Xent, eq. 1)."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from protonce.losses import accuracy, instance_logits, nce
from protonce.methods.base import Batch, System, Term
from protonce.methods.options.simclr import SimCLROptions
from protonce.momentum import encode_shuffled


class SimCLR(System):
    """Two views of each image, both as queries; the views of all other images of the batch are negatives."""

    Options = SimCLROptions
    terms: ClassVar[tuple[str, ...]] = ("instance",)

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:  # noqa: ARG002
        """NT-Xent (algorithm 1) of a batch."""
        instance = self.instance_term(batch, *self.embeddings(batch))
        return instance.loss, {"instance": instance}

    def embeddings(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """z_{2k-1} and z_2k of all images of the batch, (B, d) each.

        Section 2.2 has batch norm over all devices; here the second view has it in sub-batches of a random order.
        """
        x, x_ = batch.views
        shuffle = self.context.generator("shuffle", batch.progress)
        return self.context.gather(self.query(x)), encode_shuffled(self.query, x_, self.context, shuffle)

    def instance_term(self, batch: Batch, z: Tensor, z_: Tensor) -> Term:
        """Eq. 1, whose queries are the views of this rank; its chance level is log(2B - 1)."""
        views, images = torch.cat([z, z_]), self.context.gather(batch.index).repeat(2)  # (2B, d), (2B,)
        z, z_ = self.context.part(z), self.context.part(z_)  # (b, d) each
        logits = nt_xent_logits(z, z_, batch.index, views, images, self.settings.tau)  # (2b, 1 + 2B)
        return Term(nce(logits), math.log(len(views) - 1), accuracy(logits))


def nt_xent_logits(z: Tensor, z_: Tensor, index: Tensor, views: Tensor, images: Tensor, tau: float) -> Tensor:
    """s_{i,k} / τ of eq. 1, the positive s_{i,j} in column 0; first for the queries z, then for z_.

    Args:
        z: first views of b images, L2-normalised, (b, d).
        z_: second views of the same images, (b, d).
        index: which images they are, (b,).
        views: the views of all images of the batch, (2B, d).
        images: which images these are, (2B,).
        tau: temperature τ.

    Returns:
        (2b, 1 + 2B), the views of a query's own image at -inf
    """
    own = images[None, :] == index[:, None]  # (b, 2B)
    both = (instance_logits(query, key, views, tau, own) for query, key in ((z, z_), (z_, z)))
    return torch.cat([*both])


def nt_xent(z: Tensor, z_: Tensor, tau: float) -> Tensor:
    """The loss of algorithm 1 for two views of B images, (B, d) each, L2-normalised."""
    index = torch.arange(len(z), device=z.device)
    return nce(nt_xent_logits(z, z_, index, torch.cat([z, z_]), index.repeat(2), tau))
