"""k-nearest-neighbour classification on frozen features."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 1024  # queries at once


def knn_accuracy(
    train: Tensor,
    train_labels: Sequence[str],
    test: Tensor,
    test_labels: Sequence[str],
    k: int = 20,
    tau: float = 0.1,
) -> float:
    """Share of test images whose label wins the vote of their k nearest training images.

    Similarity is the cosine, a neighbour's vote weighs exp(v·v'/τ) (section 4.3 of the paper), and of two
    labels with as many votes the first in alphabetical order wins.

    Args:
        train: features of images with known labels, (n, D).
        train_labels: n of them.
        test: features, (q, D).
        test_labels: q of them.
        k: neighbours, at most n.
        tau: temperature of the weights.
    """
    names, codes = np.unique(np.asarray(train_labels), return_inverse=True)
    truth = np.asarray(test_labels)
    bank, known = F.normalize(train, dim=1), torch.from_numpy(codes)
    predictions = []
    for block in F.normalize(test, dim=1).split(BLOCK):
        similarity, neighbour = (block @ bank.T).topk(min(k, len(bank)), dim=1)  # (b, k)
        weight = torch.exp((similarity - 1) / tau)  # a common factor changes no vote, and keeps exp small
        votes = torch.zeros(len(block), len(names)).scatter_add_(1, known[neighbour], weight)
        predictions.append(votes.argmax(dim=1))
    return float((names[torch.cat(predictions).numpy()] == truth).mean())
