"""Jigsaw puzzles (Noroozi & Favaro, 2016): recognise in which order the tiles of an image are shown."""

import functools
from itertools import chain, permutations
from math import factorial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from protonce import randomness
from protonce.config import Resolved
from protonce.data.views import ViewSpec
from protonce.methods.base import Batch, Setup, Term
from protonce.methods.options.jigsaw import JigsawOptions
from protonce.methods.pretext import Pretext, class_term

GRID = 3  # tiles in a row and in a column
TILES = GRID**2
# Goyal et al. (2019): tiles of 64 pixels at random places in cells of 85, in crops of 255 pixels instead of 224.
CROP, TILE = 255 / 224, 64 / 85
SMALLEST = 63  # pixels of a crop: a backbone sees little in tiles of less than 16


class Jigsaw(Pretext):
    """The context-free network: the same backbone and layer for every tile, and a classifier of all of them."""

    Options = JigsawOptions
    terms: ClassVar[tuple[str, ...]] = ("permutation",)
    permutations: Tensor  # (P, 9)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        count, dim = self.options.permutations, self.options.tile_dim
        first = randomness.key(self.settings.seed, "permutations") % factorial(TILES)
        self.register_buffer("permutations", distant_permutations(TILES, count, first).clone())
        self.tile_layer = nn.Sequential(nn.Linear(self.query.feature_dim, dim), nn.ReLU(inplace=True))  # fc6
        self.classifier = nn.Linear(TILES * dim, count)

    @classmethod
    def views(cls, settings: Resolved, options: Any) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """One view, cut into tiles with random gaps, which give nothing away of their edges."""
        size = max(round(settings.image_size * CROP), SMALLEST)
        return (ViewSpec("tiles", size=size, tiles=GRID, tile_size=round(size // GRID * TILE)),)

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:  # noqa: ARG002
        """Which of the P permutations S the tiles A are in: p(S | F(A_S(1)), ..., F(A_S(9))), eq. 1."""
        (tiles,) = batch.views  # (b, 9, 3, s, s)
        draw = self.context.generator("permutation", batch.progress)
        drawn = torch.randint(len(self.permutations), (self.context.batch_size,), generator=draw)  # (B,)
        labels = self.context.part(drawn).to(tiles.device)  # (b,)
        shown = permute(tiles, self.permutations[labels])
        features = self.tile_layer(self.query.features(shown.flatten(0, 1)))  # (9 b, tile_dim)
        scores = self.classifier(features.view(len(tiles), -1))  # (b, P)
        term = class_term(scores, labels)
        return term.loss, {"permutation": term}


def permute(tiles: Tensor, order: Tensor) -> Tensor:
    """Tiles (b, 9, ...) in the order (b, 9): the j-th that is shown is tile order[:, j]; (b, 9, ...)."""
    return tiles[torch.arange(len(tiles), device=tiles.device)[:, None], order]


@functools.lru_cache(maxsize=4)
def distant_permutations(length: int, count: int, first: int) -> Tensor:
    """Algorithm 1: permutations of maximal Hamming distance, chosen one by one; (count, length).

    Each is the one, of all that are left, with the largest sum of distances to those chosen before; of several the
    first in lexicographic order.

    Args:
        length: number of tiles.
        count: how many, at most length!.
        first: index of the first of them in lexicographic order.
    """
    flat = np.fromiter(chain.from_iterable(permutations(range(length))), dtype=np.int8)
    every = flat.reshape(-1, length)  # P̄, (length!, length)
    columns = np.ascontiguousarray(every.T)
    distance = np.zeros(len(every), dtype=np.int64)  # Σ over P of the Hamming distance, D̄
    chosen = [first]  # P
    while len(chosen) < count:
        last = chosen[-1]
        for column in columns:
            distance += column != column[last]
        distance[last] = np.iinfo(np.int64).min // 2  # no longer in P̄
        chosen.append(int(distance.argmax()))
    return torch.from_numpy(every[chosen].astype(np.int64))
