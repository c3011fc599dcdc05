"""Noise-contrastive estimation against a memory bank (Wu et al., 2018, eq. 4 to 8), as pure functions of tensors.

A row v of unit length is compared with the bank's feature v_i of its own image, the data, and with those of m images
that are drawn uniformly, the noise. InstDisc, local aggregation and PIRL build on it.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from protonce import randomness
from protonce.losses import own_or_last

GATHERED = 4  # from this many times as many images as are compared, features are gathered; else all are compared


def sample_for_each(n: int, m: int, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Sample m of n images for each row, uniformly and with replacement, its own image among them; (b, m).

    Args:
        n: number of images.
        m: number of draws for each row.
        seed: random seed.
        epoch: from 0.
        index: image index of each row, (b,); draws depend on it, so the rows of a rank suffice.
    """
    u = randomness.uniform(seed, "noise", epoch, index.cpu().numpy(), m)
    return torch.from_numpy((u * n).astype("int64")).to(index.device)


def similarities(v: Tensor, bank: Tensor, which: Tensor) -> Tensor:
    """Similarity v · v_j to the images j = `which` of each row; (b, k).

    Args:
        v: (b, d).
        bank: features of all images, (n, d).
        which: (b, k).
    """
    if len(bank) >= GATHERED * which.shape[1]:
        return torch.einsum("bd,bkd->bk", v, bank[which])
    return (v @ bank.T).gather(1, which)  # equal to this, but faster where k is not far below n


def noise_logits(v: Tensor, bank: Tensor, own: Tensor, noise: Tensor | None, tau: float) -> Tensor:
    """Logits v · v_j / τ, which are log P(j | v) up to Z (eq. 4): the own image in column 0, then the noise.

    Args:
        v: (b, d).
        bank: features of all images, (n, d).
        own: image index of each row, (b,).
        noise: images for each row, (b, m); or m + 1 images for all rows, (m + 1,), from `losses.sample_candidates`, of
            which each row drops its own, or the last if its own is not among them; None: all other images.
        tau: τ.

    Returns:
        (b, 1 + m) or (b, 2 + m), the dropped image at -inf
    """
    positive = (v * bank[own]).sum(dim=1, keepdim=True)  # (b, 1)
    if noise is not None and noise.ndim == 2:
        return torch.cat([positive, similarities(v, bank, noise)], dim=1) / tau
    if noise is None:
        dropped, others = own, v @ bank.T  # (b,), (b, n)
    else:
        dropped, others = own_or_last(noise, own, len(bank)), v @ bank[noise].T  # (b,), (b, m + 1)
    others = others.scatter(1, dropped[:, None], -torch.inf)
    return torch.cat([positive, others], dim=1) / tau


def count(logits: Tensor) -> Tensor:
    """m, the number of noise images of each row, without the one at -inf; (b,)."""
    return (logits[:, 1:] > -torch.inf).sum(dim=1)


def log_normaliser(logits: Tensor, n: int) -> Tensor:
    """Monte Carlo estimate of log Z_i of each row, Z_i = n/m Σ_k exp(v · v_jk / τ) (eq. 8); (b,)."""
    return torch.logsumexp(logits[:, 1:], dim=1) + math.log(n) - torch.log(count(logits))


def noise_contrastive_loss(logits: Tensor, log_z: Tensor, n: int) -> Tensor:
    """-log h(i, v) - Σ_j log(1 - h(j, v)) (eq. 7), averaged over the batch.

    h(i, v) = P(i | v) / (P(i | v) + m P_n(i)) (eq. 6) is a sigmoid, so the logarithms are computed exactly.

    Args:
        logits: v · v_j / τ, of the data in column 0, (b, 1 + m).
        log_z: log Z, a constant, ().
        n: number of images; P_n = 1/n.
    """
    odds = logits - log_z - torch.log(count(logits) / n)[:, None]  # log P(j | v) / (m P_n(j)), (b, 1 + m)
    return (F.softplus(-odds[:, 0]) + F.softplus(odds[:, 1:]).sum(dim=1)).mean()


def chance_level(logits: Tensor) -> Tensor:
    """The loss if P(j | v) = 1/n for every image, so that h = 1 / (1 + m); ()."""
    m = count(logits)
    return (torch.log(1 + m) + m * torch.log(1 + 1 / m)).mean()
