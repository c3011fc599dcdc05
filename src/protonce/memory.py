"""What is remembered of earlier batches: a queue of keys, or a bank with a feature of every image.

Both are whole and the same on every rank: they are given the rows of all ranks. Their tensors are buffers, so that a
checkpoint holds them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EMPTY = -1


class Queue(nn.Module):
    """The momentum features of earlier batches, each with the image it belongs to; first in, first out.

    Neither its length nor the batch size needs to divide the other.
    """

    keys: Tensor  # (length, d)
    index: Tensor  # (length,) the image of each key, or EMPTY
    position: Tensor  # () where the next key goes

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(length, dim))
        self.register_buffer("index", torch.full((length,), EMPTY))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, keys: Tensor, index: Tensor) -> None:
        """Put keys (B, d) of the images `index` (B,) in, in place of the oldest."""
        length = len(self.keys)
        keys, index = keys[-length:], index[-length:]
        slots = (self.position + torch.arange(len(keys), device=keys.device)) % length
        self.keys[slots] = keys
        self.index[slots] = index
        self.position.copy_((self.position + len(keys)) % length)

    def mask(self, index: Tensor) -> Tensor:
        """True where a key is no negative for an image: it is the image's own, or the slot is empty; (B, length)."""
        return (self.index[None, :] == index[:, None]) | (self.index == EMPTY)[None, :]


class Bank(nn.Module):
    """A unit feature of every image; those of a batch replace, or move, what was there (InstDisc, PIRL).

    Args:
        n: images.
        dim: of a feature.
        generator: draws the features to begin with.
    """

    features: Tensor  # (n, d)

    def __init__(self, n: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("features", F.normalize(torch.randn(n, dim, generator=generator), dim=1))

    @torch.no_grad()
    def update(self, index: Tensor, features: Tensor, momentum: float = 0.0) -> None:
        """Move the features of the images `index` (B,) to m old + (1 - m) new, of unit length; new ones are (B, d).

        Its place is `after_step`: what a loss has seen must not change before its gradient is taken.
        """
        self.features[index] = F.normalize(momentum * self.features[index] + (1 - momentum) * features, dim=1)
