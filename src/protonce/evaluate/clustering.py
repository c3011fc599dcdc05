"""How well clusters of frozen features agree with labels."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from protonce import randomness
from protonce.kmeans import k_means


def ami(features: Tensor, labels: Sequence[str], starts: int = 5, seed: int = 0) -> float:
    """Adjusted mutual information between labels and k-means on the features, k being the number of labels.

    Args:
        features: (n, D); L2-normalised here.
        labels: n of them.
        starts: k-means is run from this many starts, and the scores averaged.
        seed: of the starts.
    """
    from sklearn.metrics import adjusted_mutual_info_score

    points = F.normalize(features, dim=1)
    scores = []
    for start in range(starts):
        generator = randomness.generator(seed, "ami", start)
        found = k_means(points, len(set(labels)), generator=generator, iterations=50)
        scores.append(adjusted_mutual_info_score(labels, found.assignment.numpy()))
    return float(sum(scores) / len(scores))
