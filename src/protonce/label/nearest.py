"""Nearest neighbours of all images: exact up to 20,000, among more in the lists of faiss that are closest."""

import importlib.util

import torch
import torch.nn.functional as F
from torch import Tensor

from protonce.evaluate.knn import neighbours
from protonce.label.lists import inverted_lists

EXACT = 20_000  # rows that are all compared; the time grows with their square: 100,000 take minutes


def nearest(bank: Tensor, queries: Tensor, k: int, left_out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cosine similarity and index of the k most similar rows of the bank, most similar first; (q, k) each.

    Among very many rows a few neighbours may be missed.

    Args:
        bank: to search, (n, D).
        queries: (q, D).
        k: number of neighbours.
        left_out: a row of the bank that is not a neighbour of each query, usually itself, (q,).
    """
    if len(bank) <= EXACT or importlib.util.find_spec("faiss") is None:
        return neighbours(bank, queries, k, left_out)
    similarity, found = _in_lists(F.normalize(bank, dim=1), F.normalize(queries, dim=1), k + (left_out is not None))
    if left_out is not None:
        keep = found != left_out[:, None]  # (q, k + 1)
        keep[keep.all(dim=1), -1] = False
        similarity, found = similarity[keep].view(-1, k), found[keep].view(-1, k)
    short = (found < 0).any(dim=1)  # the lists had fewer rows
    if short.any():
        own = None if left_out is None else left_out[short]
        similarity[short], found[short] = neighbours(bank, queries[short], k, own)
    return similarity, found


def _in_lists(bank: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `nearest`, of unit vectors; the index is -1 where the searched lists have too few."""
    similarity, found = inverted_lists(bank, "Flat").search(queries.numpy(), k)
    return torch.from_numpy(similarity), torch.from_numpy(found)
