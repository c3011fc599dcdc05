"""The momentum twin f_θ', how it follows the encoder, and its keys under shuffled batch norm."""

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
    """θ' = m θ' + (1 - m) θ, for the parameters; the twin's batch norm keeps statistics of its own."""
    old: list[Tensor] = list(twin.parameters())
    new: list[Tensor] = list(query.parameters())
    torch._foreach_lerp_(old, new, 1 - momentum)


def rising_momentum(start: float, progress: Progress) -> float:
    """A momentum that rises from `start` to 1 by a cosine over all steps, as BYOL's: 1 - (1 - m)(cos(πk/K) + 1)/2."""
    return 1 - (1 - start) * (math.cos(math.pi * progress.done / progress.total) + 1) / 2


@torch.no_grad()
def encode_keys(twin: Encoder, x: Tensor, context: Context, generator: torch.Generator) -> Tensor:
    """Keys v' of the views of all ranks, in the order of the batch, with batch norm over parts of a random order.

    Query and key of an image then share no statistics by which one could tell that they belong together (MoCo's
    shuffled batch norm).

    Args:
        twin: f_θ'.
        x: the views of this rank, (b, ...).
        context: of the training.
        generator: draws the order; alike on all ranks.

    Returns:
        (B, d)
    """
    if context.splits == 1:
        return context.gather(twin(x))
    order = torch.randperm(context.batch_size, generator=generator).to(x.device)  # (B,)
    shuffled: Tensor = twin(context.part(context.gather(x)[order]))  # (b, d)
    keys = shuffled.new_empty(context.batch_size, shuffled.shape[1])
    keys[order] = context.gather(shuffled)
    return keys
