"""faiss's inverted lists, for sets in which comparing all images takes too long."""

from typing import Any

import numpy as np
from torch import Tensor

from protonce.data.sources import random_order

TRAINED_ON = 64  # vectors for each list
PROBES = 32  # lists that are searched


def inverted_lists(x: Tensor, coding: str) -> Any:
    """An index of 4 √n lists that is searched by inner product.

    Args:
        x: unit vectors, (n, D).
        coding: of the vectors in a list, in the words of faiss's index factory: `Flat` keeps them, `PQ64` quantises
            them to 64 bytes.
    """
    import faiss

    n, dim = x.shape
    count = max(int(4 * n**0.5), 1)
    lists: Any = faiss.index_factory(dim, f"IVF{count},{coding}", faiss.METRIC_INNER_PRODUCT)
    if hasattr(lists, "do_polysemous_training"):
        lists.do_polysemous_training = False  # for filtering by Hamming distance, which is not used; it takes minutes
    vectors = x.numpy()
    lists.train(vectors[np.sort(random_order(n, "lists", seed=0)[: TRAINED_ON * count])])
    lists.add(vectors)
    lists.nprobe = PROBES
    return lists
