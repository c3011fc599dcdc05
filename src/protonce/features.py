"""One pass of an encoder over a data set, by index: for the E-step, embed and evaluation."""

from collections.abc import Callable

import torch
from torch import Tensor

from protonce.data.loader import Loader


@torch.no_grad()
def extract(
    encode: Callable[[Tensor], Tensor],
    loader: Loader,
    batch_size: int = 256,
    index: Tensor | None = None,
    seen: Callable[[int], None] = lambda _: None,
) -> Tensor:
    """Features of the plain view of every image, in the order of the images; (n, d) float32 on the CPU.

    Args:
        encode: from views (B, ...) to features (B, d). Its module should be in eval mode.
        loader: gives the images.
        batch_size: images a step; the result does not depend on it.
        index: the images that are asked for, in this order; None: all.
        seen: is told of each batch how many images it had.
    """
    n = len(loader) if index is None else len(index)
    features, done = torch.empty(0), 0
    for samples in loader.plain(batch_size, index):
        batch = encode(loader.views.plain(samples)).float().cpu()  # (B, d)
        if done == 0:
            features = torch.empty(n, batch.shape[1])
        features[done : done + len(batch)] = batch
        done += len(batch)
        seen(len(batch))
    return features
