"""Features of earlier batches: a queue of keys, a feature of every image, or an average of the keys of every image.

They are identical on all ranks, because they are updated with the rows of all ranks. Their tensors are buffers, so that
checkpoints contain them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EMPTY = -1
NO_IMAGE = -2  # a key that is nobody's: a negative of every query


class Queue(nn.Module):
    """FIFO queue of the momentum features of earlier batches, with the image index of each.

    Its length need not be a multiple of the batch size.

    Args:
        length: number of keys.
        dim: dimension of the keys.
        generator: for random unit vectors to start with, which are negatives of every query; None: it starts empty.
    """

    keys: Tensor  # (length, d)
    index: Tensor  # (length,) image index of each key, or EMPTY or NO_IMAGE
    position: Tensor  # () slot of the next key

    def __init__(self, length: int, dim: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        keys = torch.zeros(length, dim)
        if generator is not None:
            keys = F.normalize(torch.randn(length, dim, generator=generator), dim=1)
        self.register_buffer("keys", keys)
        self.register_buffer("index", torch.full((length,), EMPTY if generator is None else NO_IMAGE))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, keys: Tensor, index: Tensor) -> None:
        """Replace the oldest keys by keys (B, d) of the images `index` (B,)."""
        length = len(self.keys)
        keys, index = keys[-length:], index[-length:]
        slots = (self.position + torch.arange(len(keys), device=keys.device)) % length
        self.keys[slots] = keys
        self.index[slots] = index
        self.position.copy_((self.position + len(keys)) % length)

    def mask(self, index: Tensor) -> Tensor:
        """True where a key is not a negative: it belongs to the same image, or the slot is empty; (B, length)."""
        return (self.index[None, :] == index[:, None]) | self.empty(index)

    def of_cluster(self, index: Tensor, assignment: Tensor) -> Tensor:
        """True where a key is of an image in the same cluster as the query's; (B, length).

        Args:
            index: which images the queries are, (B,).
            assignment: the cluster of each image, (n,).
        """
        key = torch.where(self.index >= 0, assignment[self.index.clamp_min(0)], EMPTY)
        return assignment[index][:, None] == key[None, :]

    def empty(self, index: Tensor) -> Tensor:
        """True where the slot is empty, for each of the images `index` (B,); (B, length)."""
        return (self.index == EMPTY)[None, :].expand(len(index), -1)


class Bank(nn.Module):
    """Memory bank with a unit feature of every image, updated batch by batch (InstDisc, PIRL).

    Args:
        n: number of images.
        dim: dimension of the features.
        generator: for the random initial features.
    """

    features: Tensor  # (n, d)

    def __init__(self, n: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("features", F.normalize(torch.randn(n, dim, generator=generator), dim=1))

    @torch.no_grad()
    def update(self, index: Tensor, features: Tensor, momentum: float = 0.0) -> None:
        """Update the features of the images `index` (B,) to m old + (1 - m) new, normalised; new features are (B, d).

        Call it in `after_step`, because features used in a loss must not change before the backward pass.
        """
        self.features[index] = F.normalize(momentum * self.features[index] + (1 - momentum) * features, dim=1)


class KeyAverage(nn.Module):
    """An exponential average of the keys of every image: features of all images without a pass over them.

    The keys of an image come from random views of different epochs, so that what views change is averaged out.

    Args:
        n: number of images.
        dim: dimension of the keys.
    """

    average: Tensor  # (n, d), not normalised
    age: Tensor  # (n,) epochs since the last key of each image; EMPTY: it had none yet

    def __init__(self, n: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(n, dim))
        self.register_buffer("age", torch.full((n,), EMPTY))

    @torch.no_grad()
    def update(self, index: Tensor, keys: Tensor, momentum: float) -> None:
        """Update the averages of different images `index` (B,) by their keys (B, d); a first key is the average."""
        old = torch.where(self.age[index, None] == EMPTY, keys, self.average[index])
        self.average[index] = momentum * old + (1 - momentum) * keys
        self.age[index] = 0

    @torch.no_grad()
    def grow_older(self) -> None:
        """An epoch begins."""
        self.age += (self.age != EMPTY).long()

    @property
    def complete(self) -> bool:
        """Whether every image had a key."""
        return bool((self.age != EMPTY).all())

    @property
    def features(self) -> Tensor:
        """The averages as unit vectors, (n, d) on the CPU."""
        return F.normalize(self.average, dim=1).cpu()
