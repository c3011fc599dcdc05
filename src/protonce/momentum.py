"""The momentum twin f_θ': its update, its schedule, and its keys under shuffled batch norm."""

import copy
import math

import torch
from torch import Tensor, nn

from protonce.context import Context, Progress
from protonce.encoder import Encoder


def twin_of(query: Encoder) -> Encoder:
    """θ' = θ: a copy that receives no gradient."""
    twin = copy.deepcopy(query)
    twin.requires_grad_(False)
    return twin


@torch.no_grad()
def update_twin(query: nn.Module, twin: nn.Module, momentum: float) -> None:
    """θ' = m θ' + (1 - m) θ, for the parameters; the twin's batch norm has its own running statistics."""
    old: list[Tensor] = list(twin.parameters())
    new: list[Tensor] = list(query.parameters())
    torch._foreach_lerp_(old, new, 1 - momentum)


def rising_momentum(start: float, progress: Progress) -> float:
    """BYOL's schedule of the momentum, a cosine from `start` to 1: 1 - (1 - m)(cos(πk/K) + 1)/2."""
    return 1 - (1 - start) * (math.cos(math.pi * progress.done / progress.total) + 1) / 2


def encode_shuffled(encoder: Encoder, x: Tensor, context: Context, generator: torch.Generator) -> Tensor:
    """Embeddings of the views of all ranks, with MoCo's shuffled batch norm. Differentiable.

    Batch norm sees sub-batches of a random order, so that the two views of an image share no batch statistics that
    would give them away.

    Args:
        encoder: f_θ or f_θ'.
        x: the views of this rank, (b, ...).
        context: of the training.
        generator: draws the order; the same on all ranks.

    Returns:
        (B, d), in the order of the batch
    """
    if context.splits == 1:
        return context.gather(encoder(x))
    order = torch.randperm(context.batch_size, generator=generator).to(x.device)  # (B,)
    shuffled: Tensor = context.gather(encoder(context.part(context.gather(x)[order])))  # (B, d)
    return shuffled[order.argsort()]


@torch.no_grad()
def encode_keys(twin: Encoder, x: Tensor, context: Context, generator: torch.Generator) -> Tensor:
    """Keys v' = f_θ'(x') of the views of all ranks, (B, d): `encode_shuffled` without a gradient."""
    return encode_shuffled(twin, x, context, generator)
