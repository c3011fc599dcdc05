"""The losses of the M-step, as pure functions of tensors: InfoNCE (eq. 1) and ProtoNCE (eq. 11).

The paper sums over the n images; like every implementation these functions take the mean over a batch.
All embeddings, keys and prototypes are L2-normalised rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protonce.blockwise import blockwise_nce
from protonce.prototypes import Prototypes
from protonce.ties import COSINE, exceeds

MANY = 2048  # negative prototypes from which the blockwise loss is faster


class ProtoNCE(NamedTuple):
    """Eq. 11: the loss, its two terms, and how often the positive scores highest in each."""

    loss: Tensor  # ()
    instance: Tensor | None  # ()  the first term, eq. 1
    prototype: Tensor | None  # ()  the second term, eq. 10 averaged over the granularities
    instance_accuracy: Tensor | None  # ()
    prototype_accuracy: Tensor | None  # ()


def instance_logits(query: Tensor, key: Tensor, negatives: Tensor, tau: float, mask: Tensor | None = None) -> Tensor:
    """v_i · v'_j / τ of eq. 1, the positive in column 0.

    Args:
        query: v, (B, d).
        key: v' of the same images, (B, d).
        negatives: v' of other images, (r, d).
        tau: temperature τ.
        mask: True where a negative is ignored for a query, because it is a key of the query's own image or an empty
            slot; (B, r).

    Returns:
        (B, 1 + r)
    """
    positive = (query * key).sum(dim=1, keepdim=True)  # (B, 1)
    others = query @ negatives.T  # (B, r)
    if mask is not None:
        others = others.masked_fill(mask, -torch.inf)
    return torch.cat([positive, others], dim=1) / tau  # (B, 1 + r)


def prototype_logits(
    query: Tensor, centroids: Tensor, concentration: Tensor, own: Tensor, candidates: Tensor | None = None
) -> Tensor:
    """v_i · c_j / φ_j of eq. 10, the query's own prototype c_s in column 0.

    Args:
        query: v, (B, d).
        centroids: the prototypes c of one granularity, (k, d).
        concentration: φ of each, (k,).
        own: s, the prototype of each image, (B,).
        candidates: indices of r + 1 prototypes, of which each query drops its own, or the last if its own is not among
            them, and keeps r as its negatives; None: all, which is eq. 10 itself.

    Returns:
        (B, 2 + r), the dropped candidate at -inf
    """
    if candidates is None:
        candidates = torch.arange(len(centroids), device=own.device)
    positive = (query * centroids[own] / concentration[own, None]).sum(dim=1, keepdim=True)  # (B, 1)
    others = query @ (centroids[candidates] / concentration[candidates, None]).T  # (B, 1 + r)
    others = others.scatter(1, own_or_last(candidates, own, len(centroids))[:, None], -torch.inf)
    return torch.cat([positive, others], dim=1)  # (B, 2 + r)


def own_or_last(candidates: Tensor, own: Tensor, k: int) -> Tensor:
    """First place of each query's own prototype among the candidates, or the last place if it is not there; (B,).

    Args:
        candidates: indices of prototypes, (r + 1,).
        own: s, (B,).
        k: number of prototypes.
    """
    place = own.new_full((k,), len(candidates) - 1)
    return place.scatter_reduce_(0, candidates, torch.arange(len(candidates), device=own.device), "amin")[own]


def prototype_term(
    query: Tensor,
    prototypes: Sequence[Prototypes],
    index: Tensor,
    candidates: Sequence[Tensor | None],
    counted: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The second term of eq. 11, and how often a query's own prototype scores highest; arguments as for `proto_nce`.

    `counted` is 1 for the queries that count and 0 for the others, (B,) for each granularity; None: all count. The loss
    is divided by B in any case.
    """
    losses, accuracies = [], []
    for m, (c, r) in enumerate(zip(prototypes, candidates, strict=True)):
        own = c.assignment[index]  # s, (B,)
        if counted is not None:
            logits = prototype_logits(query, c.centroids, c.concentration, own, r)  # (B, 2 + r)
            loss, right = counted_nce(logits, counted[m])
        elif r is not None and len(r) >= MANY:
            dropped = own_or_last(r, own, len(c.centroids))
            loss, right = blockwise_nce(  # equal to the following, but faster for many negatives
                query, c.centroids, c.concentration, own, r, dropped
            )
        else:
            logits = prototype_logits(query, c.centroids, c.concentration, own, r)  # (B, 2 + r)
            loss, right = nce(logits), accuracy(logits)
        losses.append(loss)
        accuracies.append(right)
    return torch.stack(losses).mean(), torch.stack(accuracies).mean()  # 1/M Σ_m


def sample_candidates(k: int, r: int, generator: torch.Generator) -> Tensor | None:
    """Sample r + 1 of k prototypes without replacement; None (all of them) if k <= r + 1.

    Each query drops its own prototype if it is among them, and else the last, so that it has r negatives, each as
    likely as any other. All but the last are sorted.
    """
    if k <= r + 1:
        return None
    drawn = torch.randperm(k, generator=generator)[: r + 1]
    is_drawn = torch.zeros(k, dtype=torch.bool)
    is_drawn[drawn[:r]] = True
    return torch.cat([is_drawn.nonzero()[:, 0], drawn[r:]])  # sorted, for sequential memory access


def sample_with_batch(own: Tensor, k: int, r: int, generator: torch.Generator) -> Tensor:
    """Candidates of the published code: the prototype of each image of the batch, and r that no image of it has.

    A query drops its own prototype once. So the prototypes of the other images are its negatives, even where they are
    its own.

    Args:
        own: prototype of each image of the batch, (B,).
        k: number of prototypes.
        r: number of further ones; all, if there are not as many.
        generator: draws them; the same on all ranks.

    Returns:
        (B + r,) on the device of `own`
    """
    drawn = torch.randperm(k, generator=generator).to(own.device)
    taken = own.new_zeros(k).index_fill_(0, own, 1)
    others = drawn[taken[drawn].argsort(stable=True)]  # those of the batch last; does not wait for the device
    if k - len(own) < r:
        r = min(r, k - int(taken.sum()))
    return torch.cat([own, others[:r].sort().values])


def nce(logits: Tensor) -> Tensor:
    """Cross-entropy with column 0 as the target, averaged over the batch."""
    return F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.long))


def counted_nce(logits: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """`nce` with the loss of rows that do not count set to 0, and `accuracy` of those that count.

    Args:
        logits: the positive in column 0, (B, 1 + r).
        counted: 1 or 0, (B,).
    """
    rows = F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.long), reduction="none")  # (B,)
    right = exceeds(logits[:, 0], logits[:, 1:].amax(dim=1)).float()
    return (counted * rows).mean(), (counted * right).sum() / counted.sum().clamp_min(1)


def agreeing(keys: Tensor, index: Tensor, c: Prototypes) -> Tensor:
    """1 where the prototype of an image is also the nearest one of its key, as k-means measures it, else 0; (B,).

    Args:
        keys: v', (B, d).
        index: which images they are, (B,).
        c: the prototypes of one granularity.
    """
    near = keys @ c.means.T - c.means.square().sum(dim=1) / 2  # (B, k); -‖v' - mean‖²/2 up to a constant
    own = near.gather(1, c.assignment[index][:, None])[:, 0]
    return (own >= near.amax(dim=1) - COSINE).float()


def accuracy(logits: Tensor) -> Tensor:
    """Share of rows in which column 0 exceeds every other by more than rounding; 0 if all logits are equal."""
    if logits.shape[1] == 1:
        return logits.new_ones(())
    return exceeds(logits[:, 0], logits[:, 1:].amax(dim=1)).float().mean()


def info_nce(query: Tensor, key: Tensor, negatives: Tensor, tau: float, mask: Tensor | None = None) -> Tensor:
    """InfoNCE, eq. 1, averaged over the batch; arguments as for `instance_logits`."""
    return nce(instance_logits(query, key, negatives, tau, mask))


def proto_nce(
    query: Tensor,
    key: Tensor,
    negatives: Tensor,
    prototypes: Sequence[Prototypes],
    index: Tensor,
    *,
    tau: float,
    mask: Tensor | None = None,
    candidates: Sequence[Tensor | None] | None = None,
    weight: float = 1.0,
    instance_term: bool = True,
) -> ProtoNCE:
    """ProtoNCE, eq. 11, averaged over the batch.

    Args:
        query: v, (B, d).
        key: v' of the same images, (B, d).
        negatives: v' of other images, (r, d).
        prototypes: one set C^m per granularity; empty during warm-up, which leaves only the first term.
        index: image index of each row, (B,).
        tau: temperature of the first term; the second uses φ.
        mask: True where a negative is ignored for a query, (B, r).
        candidates: for the negative prototypes of each granularity, from `sample_candidates` or `sample_with_batch`;
            None: all.
        weight: of the second term; 1 is eq. 11.
        instance_term: False omits the first term once there are prototypes (appendix A, "proto only").
    """
    loss = query.new_zeros(())
    instance = prototype = instance_accuracy = prototype_accuracy = None
    if instance_term or not prototypes:
        logits = instance_logits(query, key, negatives, tau, mask)
        instance, instance_accuracy = nce(logits), accuracy(logits)
        loss = loss + instance
    if prototypes:
        drawn = candidates if candidates is not None else [None] * len(prototypes)
        prototype, prototype_accuracy = prototype_term(query, prototypes, index, drawn)
        loss = loss + weight * prototype
    return ProtoNCE(loss, instance, prototype, instance_accuracy, prototype_accuracy)
