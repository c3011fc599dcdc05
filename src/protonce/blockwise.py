"""The prototype term of one granularity, computed in blocks of negatives: faster than `losses` for many thousands.

Each block of logits is used for the loss and for its gradient while it is in the cache, and is never stored. This takes
one pass instead of a dozen passes over matrices of hundreds of megabytes.
"""

from typing import Any

import torch
from torch import Tensor

from protonce.ties import exceeds

BLOCK = 1 << 19  # logits per block on a CPU; a GPU takes all at once


def blockwise_nce(
    query: Tensor, centroids: Tensor, concentration: Tensor, own: Tensor, candidates: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean of eq. 10 over a batch, and the share of queries whose own prototype scores highest.

    Equal to `nce` and `accuracy` of `prototype_logits`. Differentiable in the query.

    Args:
        query: v, (B, d).
        centroids: c, (k, d).
        concentration: φ, (k,).
        own: s, (B,).
        candidates: the negative prototypes, (r,), each at most once.
    """
    loss, right = _Blockwise.apply(query, centroids, concentration, own, candidates)
    return loss, right


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, centroids: Tensor, concentration: Tensor, own: Tensor, candidates: Tensor
    ) -> tuple[Tensor, Tensor]:
        scaled = centroids[own] / concentration[own, None]  # c_s / φ_s, (B, d)
        positive = (query * scaled).sum(dim=1)  # (B,)
        place = own.new_full((len(centroids),), -1)
        place[candidates] = torch.arange(len(candidates), device=own.device)
        masked = place[own]  # position of each query's own prototype among the candidates, or -1; (B,)

        # Σ_j exp(logit_j - top) and Σ_j exp(logit_j - top) c_j / φ_j, the positive being the first j.
        top, total, pull = positive.clone(), torch.ones_like(positive), scaled.clone()
        highest = torch.full_like(positive, -torch.inf)  # of the negatives
        size = len(candidates) if query.is_cuda else max(BLOCK // len(query), 1)
        for start, block in zip(range(0, len(candidates), size), candidates.split(size), strict=True):
            negatives = centroids.index_select(0, block).div_(concentration[block, None])  # (b, d)
            logits = query @ negatives.T  # (B, b)
            inside = ((masked >= start) & (masked < start + len(block)))[:, None]  # (B, 1)
            column = (masked[:, None] - start).clamp(0, len(block) - 1)  # not by `nonzero`, which waits for a GPU
            logits.scatter_(1, column, logits.gather(1, column).masked_fill(inside, -torch.inf))
            highest = torch.maximum(highest, logits.amax(dim=1))
            raised = torch.maximum(top, highest)
            shrink = torch.exp(top - raised)
            shares = logits.sub_(raised[:, None]).exp_()
            total = total * shrink + shares.sum(dim=1)
            pull = torch.addmm(pull * shrink[:, None], shares, negatives)
            top = raised
        ctx.save_for_backward((pull / total[:, None] - scaled) / len(query))
        loss = (top + total.log() - positive).mean()
        right = exceeds(positive, highest).float().mean()
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream[0] * gradient, None, None, None, None
