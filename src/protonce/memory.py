"""The queue of keys: the momentum features of earlier batches, each with the image it belongs to."""

import torch
from torch import Tensor, nn

EMPTY = -1


class Queue(nn.Module):
    """First in, first out. Its tensors are buffers, so that a checkpoint holds them.

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
