"""The share of an epoch that the E-step takes: with a pass over the images, and with a bank of keys.

    python -m benchmarks.e_step

PCL with the demo's encoder on 3,000 and on 20,000 drawings, one thread, epochs with a pass and with a bank in turn; the
E-step is the features of all images, if there is a pass, and k-means. `ratio` is the larger share with the bank.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import protonce
from benchmarks.timing import parser, publish
from protonce.data import builtin

SIZES = {3_000: {}, 20_000: {"clusters": "auto"}}
TRAINED = 4  # epochs of a run; the first has no bank, and is not counted, nor the last, which compares bank and pass
COMMON = {"recipe": "demo", "epochs": TRAINED, "warmup_epochs": 1, "quiet": True, "device": "cpu"}
GOAL = 0.05


def main() -> None:
    """The command."""
    options = parser(__doc__, threads=1, repeats=1).parse_args()
    torch.set_num_threads(options.threads)
    shares = {f"{n} images": measure(n, options.repeats) for n in SIZES}
    publish(
        "e_step",
        {
            "ratio": max(found["bank"] for found in shares.values()),
            "goal": GOAL,
            "better": "lower",
            "timed": "E-steps, as a share of their epochs",
            "shares": shares,
            "threads": options.threads,
        },
    )


def measure(n: int, repeats: int) -> dict[str, float]:
    """Median share of the E-step over the epochs of all runs, by what is clustered."""
    images = np.concatenate([builtin.draw_images("train", seed)[0] for seed in range(-(-n // 3000))])[:n]
    found: dict[str, list[float]] = {"pass": [], "bank": []}
    for repeat in range(repeats):
        for what, shares in found.items():
            with tempfile.TemporaryDirectory() as folder:
                settings: dict[str, Any] = {**COMMON, "seed": repeat, **SIZES[n]}
                run = protonce.train(images, Path(folder) / "run", e_step_features=what, **settings)
                shares += [
                    (record["cluster_seconds"] + record["features_seconds"]) / record["seconds"]
                    for record in run.metrics[1:-1]
                ]
    return {what: statistics.median(shares) for what, shares in found.items()}


if __name__ == "__main__":
    main()
