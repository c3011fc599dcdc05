"""SwAV (Caron et al., 2020): predict the cluster assignment of one view from another (swapped prediction, eq. 1)."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protonce.config import Resolved
from protonce.context import Progress
from protonce.data.views import TWO_VIEWS, ViewSpec
from protonce.encoder import fixed_size
from protonce.errors import UserError
from protonce.memory import Queue
from protonce.methods.base import Batch, Setup, System, Term
from protonce.methods.options.swav import SwAVOptions

SMALL_CROPS = 6  # section 4.3
SMALL_SIZE = 96 / 224  # side of a small crop, as a share of a large one's
SMALLEST = 0.05  # share of the image in a small crop, at least; at most that in the smallest large crop


class SwAV(System):
    """Learnt prototypes C, and the codes Q of the two large views, computed online."""

    Options = SwAVOptions
    terms: ClassVar[tuple[str, ...]] = ("swapped",)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.C = nn.Linear(self.query.dim, self.options.prototypes, bias=False)  # its weight is (K, d)
        self._normalise()
        queues = range(2 if self.options.code_queue else 0)  # one for each large view
        self.queues = nn.ModuleList(Queue(self.options.code_queue, self.query.dim) for _ in queues)

    @classmethod
    def views(cls, settings: Resolved, options: SwAVOptions) -> tuple[ViewSpec, ...]:
        """Two large crops, and with multi-crop (section 3.2) six small ones.

        Raises:
            UserError: the backbone accepts one size of images only.
        """
        if options.crops == "2":
            return TWO_VIEWS
        if fixed_size(settings.backbone):
            raise UserError(f"backbone {settings.backbone} accepts images of one size only; set crops to 2")
        largest = settings.crop_scale[0]
        scale, size = (min(SMALLEST, largest), largest), round(SMALL_SIZE * settings.image_size)
        return *TWO_VIEWS, *(ViewSpec(f"small {i}", size=size, crop_scale=scale) for i in range(SMALL_CROPS))

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:  # noqa: ARG002
        """The swapped prediction of all views from the codes of the first two (eq. 1, with multi-crop eq. 6)."""
        z = [self.query(view) for view in batch.views]  # (b, d) each
        q = [self.codes(i, z[i], batch) for i in range(2)]  # (b, K) each
        loss = swapped_loss([self.C(z_t) for z_t in z], q, self.settings.tau)
        return loss, {"swapped": Term(loss, math.log(self.options.prototypes))}

    @torch.no_grad()
    def codes(self, i: int, z: Tensor, batch: Batch) -> Tensor:
        """Codes q of view i, (b, K), from the features of all ranks and, once it is full, the queue (section 3.1)."""
        z = self.context.gather(z)  # (B, d)
        rows = z
        if self.options.code_queue:
            queue: Any = self.queues[i]
            begun = self.options.code_queue_from * batch.progress.steps
            pushed = len(z) * max(batch.progress.done - begun, 0)
            if pushed >= self.options.code_queue:
                rows = torch.cat([z, queue.keys])  # (B + queue, d)
            if batch.progress.done >= begun:
                queue.push(z, self.context.gather(batch.index))
        q = sinkhorn(self.C(rows), self.options.epsilon, self.options.sinkhorn_iterations)
        return self.context.part(q[: len(z)])

    def after_backward(self, progress: Progress) -> None:
        """C is frozen in the first steps (appendix A)."""
        if progress.done < self.options.frozen_steps:
            self.C.weight.grad = None

    def after_step(self, progress: Progress) -> None:
        """Prototypes are unit vectors."""
        if progress.done >= self.options.frozen_steps:
            self._normalise()

    @torch.no_grad()
    def _normalise(self) -> None:
        self.C.weight.copy_(F.normalize(self.C.weight, dim=1))


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Codes Q* = Diag(u) exp(C^T Z / ε) Diag(v), which share the samples out evenly among the prototypes (eq. 3 to 5).

    Args:
        scores: z^T c of each sample and prototype, (B, K).
        epsilon: smoothness ε of the codes.
        iterations: of Sinkhorn-Knopp.

    Returns:
        (B, K); each row sums to 1, and each column, if there are iterations enough, to B/K
    """
    log_q = scores / epsilon
    for _ in range(iterations):  # logarithms do not overflow, however small ε is
        log_q = log_q - log_q.logsumexp(dim=0, keepdim=True)  # all prototypes alike
        log_q = log_q - log_q.logsumexp(dim=1, keepdim=True)  # all samples alike
    return log_q.exp()


def swapped_loss(scores: Sequence[Tensor], codes: Sequence[Tensor], tau: float) -> Tensor:
    """Mean of ℓ(z_t, q_s) = -Σ_k q_s^k log p_t^k (eq. 2) over all pairs of a code s and another view t.

    Args:
        scores: z_t^T c of each view, (B, K) each.
        codes: q_s of the first views, (B, K) each.
        tau: temperature τ of p_t = softmax(z_t^T c / τ).
    """
    pairs = [(z_t, q_s) for s, q_s in enumerate(codes) for t, z_t in enumerate(scores) if t != s]
    return torch.stack([F.cross_entropy(z_t / tau, q_s) for z_t, q_s in pairs]).mean()
