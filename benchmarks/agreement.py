"""AMI of many clusters with many classes: once for each pair of sizes, against scikit-learn's cell by cell.

    python -m benchmarks.agreement

The ratio is of 100,000 images in 1,000 clusters and 100 classes, which scikit-learn can wait for; beside it the seconds
for a million images in 25,000 clusters and 1,000 classes, the size of the paper's.
"""

import time

import numpy as np
import torch
from sklearn.metrics import adjusted_mutual_info_score

from benchmarks.timing import interleaved, parser, publish
from protonce.agreement import ami, table


def partitions(n: int, clusters: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Clusters of very different sizes, half of whose images are of one class."""
    rng = np.random.default_rng(0)
    found = (rng.random(n) ** 1.3 * clusters).astype(int)
    return found, np.where(rng.random(n) < 0.5, found % classes, rng.integers(0, classes, n))


def main() -> None:
    options = parser(__doc__, threads=1, repeats=3).parse_args()
    torch.set_num_threads(options.threads)
    clusters, classes = partitions(100_000, 1_000, 100)
    seconds = interleaved(
        {
            "protonce": lambda: ami(table(clusters, classes)),
            "scikit-learn": lambda: adjusted_mutual_info_score(classes, clusters),
        },
        options.repeats,
    )
    large = partitions(1_000_000, 25_000, 1_000)
    began = time.perf_counter()
    score = ami(table(*large))
    publish(
        "agreement",
        {
            "ratio": seconds["scikit-learn"] / seconds["protonce"],
            "goal": 2.0,
            "better": "higher",
            "timed": "AMI of 100,000 images, 1,000 clusters and 100 classes",
            "seconds": seconds,
            "million": {"seconds": time.perf_counter() - began, "ami": score},
            "repeats": options.repeats,
        },
    )


if __name__ == "__main__":
    main()
