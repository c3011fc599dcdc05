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
    seen: Callable[[int], None] = lambda _: None,
) -> Tensor:
    """Features of the plain view of every image, in the order of the images; (n, d) float32 on the CPU.

    Args:
        encode: from views (B, ...) to features (B, d). Its module should be in eval mode.
        loader: gives the images.
        batch_size: images a step; the result does not depend on it.
        seen: is told of each batch how many images it had.
    """
    features: Tensor | None = None
    for samples in loader.plain(batch_size):
        batch = encode(loader.views.plain(samples)).float().cpu()  # (B, d)
        if features is None:
            features = torch.empty(len(loader), batch.shape[1])
        features[samples.index] = batch
        seen(len(batch))
    assert features is not None, "a source is never empty"
    return features
