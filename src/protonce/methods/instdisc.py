"""InstDisc (Wu, Xiong, Yu & Lin, 2018): each image is a class, and its weight vector is its feature in a memory bank.

"Unsupervised Feature Learning via Non-Parametric Instance Discrimination". The softmax and the memory bank are in
`bank.py`, and eq. 4 to 8, noise-contrastive estimation, in `noise_contrast.py`, because other systems build on them.
"""

from typing import Any, ClassVar

from torch import Tensor

from protonce.config import Resolved
from protonce.data.views import ViewSpec
from protonce.methods.bank import BankSystem
from protonce.methods.base import Batch, Term
from protonce.methods.options.instdisc import InstDiscOptions


class InstDisc(BankSystem):
    """A non-parametric softmax over all images."""

    Options = InstDiscOptions
    terms: ClassVar[tuple[str, ...]] = ("instance",)

    @classmethod
    def views(cls, settings: Resolved, options: Any) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """One view."""
        return (ViewSpec("query"),)

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:  # noqa: ARG002
        """J by the exact softmax (eq. 3), or J_NCE (eq. 7); with proximal regularisation, eq. 10."""
        v = self.query(batch.views[0])  # v = f_θ(x), (b, d)
        instance = self.instance_term(v, batch)  # -log P(i | v), or by NCE
        loss = instance.loss
        if self.options.proximal:
            loss = loss + self.options.proximal * proximal(v, self.bank.features[batch.index])  # eq. 10
        self.remember(v, batch.index)
        return loss, {"instance": instance}


def proximal(v: Tensor, before: Tensor) -> Tensor:
    """||v_i - v_i before||² (eq. 9), averaged over the batch; both are (b, d)."""
    return (v - before).square().sum(dim=1).mean()
