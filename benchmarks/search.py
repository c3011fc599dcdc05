"""Seconds of a search among a million vectors, on one thread: all of them, and by the index of `protonce search`.

    python -m benchmarks.search [--images 1000000] [--dim 128]

Vectors lie around 20,000 centres. Median over 50 queries, one at a time, 20 images each, after loading; recall of the
ten nearest against all. `ratio` is the worse of both: flat over 100 ms, index over 10 ms. About five minutes: the index
is trained. Writes benchmarks/results/search.json.
"""

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import torch

from protonce.files import write_whole
from protonce.label.index import Index, flat_index, quantised_index

RESULT = Path(__file__).parent / "results" / "search.json"
FLAT_GOAL, INDEX_GOAL = 0.1, 0.01  # seconds
QUERIES, TOP, CENTRES = 50, 20, 20_000


def seconds(index: Index, queries: torch.Tensor) -> float:
    """Median of a search for one query."""
    times = []
    for query in queries:
        began = time.perf_counter()
        index.search(query[None], TOP)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    import faiss

    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CENTRES, options.dim, generator=generator)
    which = torch.randint(CENTRES, (options.images,), generator=generator)
    features = centres[which] + 0.7 * torch.randn(options.images, options.dim, generator=generator)
    queries = features[torch.randperm(options.images, generator=generator)[:QUERIES]]
    began = time.perf_counter()
    index = quantised_index(features)
    building = time.perf_counter() - began
    flat = flat_index(features)
    faiss.omp_set_num_threads(1)
    times = {"flat": seconds(flat, queries), "index": seconds(index, queries)}
    result = {
        "ratio": max(times["flat"] / FLAT_GOAL, times["index"] / INDEX_GOAL),
        "goal": 1.0,
        "better": "lower",
        "timed": "a search for one vector among all, and by the index, on one thread",
        "images": options.images,
        "dim": options.dim,
        "seconds": times,
        "recall_at_10": index.recall,
        "seconds_to_build": building,
        "bytes_of_vectors": features.numel() * 4,
        "bytes_of_lists": len(faiss.serialize_index(index.lists)),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(result, indent=2))
    write_whole(RESULT, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
