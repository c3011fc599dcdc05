"""Memory that 10,000 x 50,000 nearest neighbours at 2048 dimensions take beside the features themselves.

    python -m benchmarks.knn_memory

`ratio` is the rise of the process's peak in gigabytes, from the moment both matrices are there; seconds beside it.
"""

import resource
import time

import torch

from benchmarks.timing import parser, publish
from protonce.evaluate.knn import neighbours

BANK, QUERIES, DIM, K = 50_000, 10_000, 2048, 200


def main() -> None:
    options = parser(__doc__, threads=2, repeats=1).parse_args()
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    bank, queries = (torch.randn(n, DIM, generator=generator) for n in (BANK, QUERIES))
    before = _peak()
    began = time.perf_counter()
    neighbours(bank, queries, K)
    publish(
        "knn_memory",
        {
            "ratio": _peak() - before,
            "goal": 2.0,
            "better": "lower",
            "timed": f"gigabytes beyond the features: {QUERIES:,} queries among {BANK:,}, {DIM}-D, k = {K}",
            "seconds": time.perf_counter() - began,
            "threads": options.threads,
        },
    )


def _peak() -> float:
    """The most memory this process has had so far, in gigabytes (Linux counts in kilobytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
