"""Where images are compared: directions from the mean image."""

import torch.nn.functional as F
from torch import Tensor


def directions(features: Tensor, mean: Tensor | None = None) -> Tensor:
    """Features (n, D) less a mean (D,), None: their own, as unit vectors; (n, D).

    All features often point nearly the same way; what tells images apart is how they differ from the mean.
    """
    return F.normalize(features - (features.mean(dim=0) if mean is None else mean), dim=1)
