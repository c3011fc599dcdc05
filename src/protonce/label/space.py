"""Where images are compared: directions from the mean image."""

import torch.nn.functional as F
from torch import Tensor


def directions(features: Tensor) -> Tensor:
    """Features (n, D) less their mean, as unit vectors; (n, D).

    All features often point nearly the same way; what tells images apart is how they differ from the mean.
    """
    return F.normalize(features - features.mean(dim=0), dim=1)
