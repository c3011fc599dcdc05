"""Does every system learn from its targets? Its kNN against the same training with permuted targets, and untrained.

    python -m benchmarks.systems [--systems byol,swav] [--seeds 200,201,202]

A control, not a ranking: short training of a small encoder on 1,200 drawings, a fifth of which is held out and scored,
with one setting for all systems but three, which learn nothing in so few steps (`OWN`). Permuted targets keep the
images, the loss and the number of steps, but an image gets the target of another one. Takes about an hour of one core
for all systems; what is done is kept.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import protonce
from protonce.compare.scores import NEIGHBOURS
from protonce.data.sources import open_source
from protonce.data.splitting import split
from protonce.evaluate.knn import knn_accuracy
from protonce.files import write_whole
from protonce.methods.base import Batch, System
from protonce.methods.registry import SYSTEMS

RESULT = Path(__file__).parent / "results" / "systems.json"
# What is permuted, so that the targets say nothing of the images.
PERMUTED = {
    **dict.fromkeys(("byol", "moco", "pcl", "pcl+byol", "pcl+simclr", "simclr", "swav"), "views"),
    **dict.fromkeys(("deepcluster", "instdisc", "localagg", "pirl", "selflabel"), "images"),
    "supervised": "labels",
    "rotation": "rotations",
    "jigsaw": "tiles",
}
SETTINGS: dict[str, Any] = {
    "recipe": "small-v2",
    "backbone": "resnet10t",
    "width": 8,
    "image_size": 24,
    "jitter": [0.4, 0.4, 0.0, 0.0],
    "grey_p": 0.0,
    "tau": 0.1,
    "batch_size": 64,
    "lr": 0.06,
    "epochs": 30,
    "record_every": 30,
    "device": "cpu",
    "quiet": True,
}
OWN: dict[str, dict[str, Any]] = {
    "deepcluster": {"epochs": 90, "lr": 0.24},  # its classifier starts anew every few epochs
    "selflabel": {"epochs": 90, "lr": 0.24},  # chosen with seed 300
    "swav": {"epochs": 90},
}
IMAGES = 1200


def permute(batch: Batch, what: str, seed: int) -> Batch:
    """The batch, with targets that belong to other images."""
    generator = torch.Generator().manual_seed(1_000_000 * seed + batch.progress.done)
    first, *others = batch.views
    n = len(first)
    order = torch.randperm(n, generator=generator)
    if what == "views":
        return replace(batch, views=(first, *(view[order] for view in others)))
    if what == "images":
        return replace(batch, index=batch.index[order])
    if what == "labels":
        assert batch.labels is not None
        return replace(batch, labels=batch.labels[order])
    if what == "rotations":  # the system rotates images that already are, by how much nobody knows
        turns = torch.randint(4, (n,), generator=generator).tolist()
        return replace(batch, views=(torch.stack([x.rot90(k, (1, 2)) for x, k in zip(first, turns, strict=True)]),))
    orders = [torch.randperm(first.shape[1], generator=generator) for _ in range(n)]
    return replace(batch, views=(torch.stack([x[o] for x, o in zip(first, orders, strict=True)]),))


def permuted(system: type[System], what: str) -> type[System]:
    """The system with permuted targets."""

    class Permuted(system):  # type: ignore[misc, valid-type]
        def m_step(self, batch: Batch, state: Any) -> Any:
            return super().m_step(permute(batch, what, self.settings.seed), state)

    return Permuted


def score(task: tuple[str, str, int]) -> float:
    """Accuracy of kNN on images held out, after training a system with true or permuted targets."""
    name, targets, seed = task
    torch.set_num_threads(1)
    train, held_out = split(open_source("builtin", "train", seed, IMAGES), seed)
    system = SYSTEMS[name].system
    method = system if targets == "true" else permuted(system, PERMUTED[name])
    with tempfile.TemporaryDirectory() as folder:
        run = protonce.train(train, Path(folder) / "run", method=method, seed=seed, **{**SETTINGS, **OWN.get(name, {})})
        known, asked = (run.features(source, "backbone")[0] for source in (train, held_out))
    assert train.labels is not None
    assert held_out.labels is not None
    return knn_accuracy(known, train.labels, asked, held_out.labels, k=NEIGHBOURS)


def summarise(found: Mapping[str, float], names: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Means over seeds, and the margins of the true targets."""
    rows = []
    for name in names:
        true, wrong = ([found[f"{name} {targets} {seed}"] for seed in seeds] for targets in ("true", "permuted"))
        none = [found[f"random true {seed}"] for seed in seeds]
        margins = {
            key: [a - b for a, b in zip(true, other, strict=True)]
            for key, other in (("permuted", wrong), ("random", none))
        }
        rows.append(
            {
                "system": name,
                **{key: statistics.fmean(x) for key, x in (("true", true), ("permuted", wrong), ("random", none))},
                **{f"over_{key}": statistics.fmean(x) for key, x in margins.items()},
                **{f"smallest_over_{key}": min(x) for key, x in margins.items()},
            }
        )
    return rows


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(PERMUTED))
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[200, 201, 202])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    asked = (SETTINGS, OWN)
    found: dict[str, float] = result.get("cells", {}) if (result.get("settings"), result.get("own")) == asked else {}
    tasks = [("random", "true", seed) for seed in options.seeds]
    tasks += [(s, targets, seed) for s in options.systems for seed in options.seeds for targets in ("true", "permuted")]
    tasks = [task for task in tasks if "{} {} {}".format(*task) not in found]
    keep = partial(_keep, found=found, options=options)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for task, accuracy in zip(tasks, pool.map(score, tasks), strict=True):
            found["{} {} {}".format(*task)] = accuracy
            print(*task, f"{100 * accuracy:.1f} %", flush=True)
            keep()
    for row in keep():
        print("{system:12} {true:.3f}  permuted {permuted:.3f}  random {random:.3f}".format(**row))


def _keep(found: dict[str, float], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Write what is known; the rows that are complete."""
    needed = {name: [f"{name} {t} {seed}" for t in ("true", "permuted") for seed in options.seeds] for name in PERMUTED}
    whole = all(f"random true {seed}" in found for seed in options.seeds)
    names = [name for name, keys in needed.items() if whole and all(key in found for key in keys)]
    rows = summarise(found, names, options.seeds)
    better = [row for row in rows if min(row["over_permuted"], row["over_random"]) > 0]
    result = {
        "what": "share of systems whose mean kNN is above that of permuted targets and of untrained weights",
        "ratio": len(better) / len(rows) if rows else 0.0,
        "goal": 1.0,
        "better": "higher",
        "settings": SETTINGS,
        "own": OWN,
        "images": IMAGES,
        "seeds": options.seeds,
        "rows": rows,
        "cells": found,
    }
    write_whole(RESULT, json.dumps(result, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
