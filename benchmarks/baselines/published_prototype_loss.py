"""The prototype term as the published code computes it: negatives drawn from Python sets, anew for each granularity.

Its negatives exclude the prototypes of the whole batch, which stand before them instead, those of other images too.
"""

import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from protonce.prototypes import Prototypes


def prototype_loss(query: Tensor, prototypes: Sequence[Prototypes], index: Tensor, r: int) -> Tensor:
    """The mean over granularities of the cross-entropy of B + r prototypes; the right one of row i is the i-th."""
    losses = []
    for c in prototypes:
        own = c.assignment[index]  # (B,)
        others = set(range(len(c.centroids))) - set(own.tolist())
        negatives = torch.tensor(random.sample(tuple(others), r))
        chosen = torch.cat([c.centroids[own], c.centroids[negatives]])  # (B + r, d)
        logits = query @ chosen.T  # (B, B + r)
        logits /= torch.cat([c.concentration[own], c.concentration[negatives]])
        losses.append(F.cross_entropy(logits, torch.arange(len(query))))
    return torch.stack(losses).mean()
