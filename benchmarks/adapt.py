"""Does it help to adapt a pretrained encoder to images without labels? The protocol is in docs/adapt.md.

    python -m benchmarks.adapt choose lite0.pth --cifar10 DIR --imagenette DIR
    python -m benchmarks.adapt test lite0.pth --flowers DIR --elpv DIR --voc-crops DIR

`choose` trains the trials of every system on the sets to choose by; `test` trains what was chosen on the other sets,
which are read once. `python -m benchmarks.lite0` writes the weights. What is done is kept in --results, and the command
continues from there.
"""

import argparse
import hashlib
import json
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import protonce
from benchmarks.adapt_cache import Activations
from benchmarks.adapt_data import CHOOSING, READ_ONCE
from protonce.adaptation import principal_components
from protonce.data.sources import Source
from protonce.evaluate.clustering import ami
from protonce.evaluate.knn import neighbours, vote
from protonce.features import extract
from protonce.files import write_whole
from protonce.importing import import_encoder
from protonce.methods.base import System
from protonce.methods.pcl import PCL
from protonce.preparation import Plan, Request, prepare
from protonce.progress import Reporter
from protonce.ranks import Ranks
from protonce.run import Run

ENCODER: dict[str, Any] = {"backbone": "tf_efficientnet_lite0", "mean": [0.5] * 3, "std": [0.5] * 3}
SIDE = 96  # of the views in training
FROZEN_SIDES = (96, 160, 224)  # ahead of frozen features means ahead of the best of these
COMPONENTS = 128
NEIGHBOURS, TAU = 20, 0.1
CHOOSING_SEEDS, SEEDS = (100, 101), (0, 1, 2, 3, 4)
FROZEN, ON_IMAGES = "frozen", "on images"  # a system that is not trained; trainings whose views are not shared
FINALISTS = 2  # trials that are trained with both choosing seeds
USUAL_VIEWS: dict[str, Any] = {"crop_scale": [0.2, 1.0], "jitter": [0.4, 0.4, 0.4, 0.1], "grey_p": 0.2}
SHARED_TRIALS: list[dict[str, Any]] = [
    {},
    {"lr": 0.002},
    {"lr": 0.02},
    {"trained_stages": 1},
    {"trained_stages": 4},
    {"batch_norm": "batch"},
    USUAL_VIEWS,
    {"start_share": 0.0},
]
OWN_TRIALS: dict[str, list[dict[str, Any]]] = {
    "pcl": [{"instance_weight": 0.0}, {"instance_weight": 1.0}],
    "fixed-prototypes": [{"instance_weight": 0.0}, {"instance_weight": 1.0}],
    "moco": [{"tau": 0.1}, {"twin_momentum": 0.95}],
    "simclr": [{"tau": 0.1}, {"tau": 0.5}],
    "byol": [{"twin_momentum": 0.95}, {"twin_momentum": 0.995}],
}


class FixedPrototypes(PCL):
    """PCL whose prototypes stay clusters of the pretrained features: the control of making them anew."""

    _first: Any = None

    def e_step(self, epoch: int, features: Callable[[], Tensor]) -> Any:
        """The first E-step's, in every epoch."""
        self._first = self._first or super().e_step(epoch, features)
        return self._first


METHODS: dict[str, str | type[System]] = {**{name: name for name in OWN_TRIALS}, "fixed-prototypes": FixedPrototypes}


@dataclass(frozen=True)
class Cell:
    """One training of one system on one set, or the frozen encoder (system `FROZEN`)."""

    data: str
    root: str
    weights: str
    system: str
    changes: dict[str, Any]
    seed: int

    @property
    def name(self) -> str:
        """Of its file: the set, the system, a digest of what was changed, and the seed."""
        digest = hashlib.sha256(json.dumps(self.changes, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.data}-{self.system}-{digest}-{self.seed}"


def trials(system: str) -> list[dict[str, Any]]:
    """What is tried: as many changes of the recipe for every system."""
    return [*SHARED_TRIALS, *OWN_TRIALS[system]]


def run_group(cells: Sequence[Cell], folder: Path) -> None:
    """Train and score cells of one set and seed, those with the same views together, and keep each result."""
    torch.set_num_threads(1)
    train, test = {**CHOOSING, **READ_ONCE}[cells[0].data](Path(cells[0].root), cells[0].seed)
    together: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        together[_views(cell, train)].append(cell)
    for views, same in together.items():
        with tempfile.TemporaryDirectory() as made:
            activations = None
            if views not in (FROZEN, ON_IMAGES):
                plan = _plan(same[0], train)
                specs = plan.entry.system.views(plan.settings, plan.options)
                activations = Activations(plan.settings, specs, train, test, Path(made))
            for cell in same:
                found = _score_frozen(cell, train, test) if views == FROZEN else _run(cell, train, test, activations)
                about = {"data": cell.data, "system": cell.system, "changes": cell.changes, "seed": cell.seed}
                result = {**about, "images": [len(train), len(test)], **found}
                write_whole(folder / f"{cell.name}.json", json.dumps(result, indent=1) + "\n")
                print(cell.name, flush=True)


def _views(cell: Cell, train: Source) -> str:
    """What frozen stages compute, and on which views; the same text for cells that share it."""
    if cell.system == FROZEN:
        return FROZEN
    plan = _plan(cell, train)
    s = plan.settings
    if s.batch_norm != "frozen":  # then frozen stages depend on the batch
        return ON_IMAGES
    given = (s.trained_stages, s.epochs, s.crop_scale, s.flip_p, s.jitter, s.jitter_p, s.grey_p, s.blur_p, s.blur_sigma)
    return repr((*given, plan.entry.system.views(s, plan.options)))


def _plan(cell: Cell, train: Source) -> Plan:
    request = Request(train, Path("no folder"), "adapt", METHODS[cell.system], settings=_settings(cell))
    return prepare(request, Reporter(quiet=True), Ranks())


def _settings(cell: Cell) -> dict[str, Any]:
    common = {"init": cell.weights, "image_size": SIDE, "seed": cell.seed, "device": "cpu", "workers": 0}
    return {**common, **ENCODER, **cell.changes}


def _run(cell: Cell, train: Source, test: Source, activations: Activations | None) -> dict[str, Any]:
    """Train and score a cell, on activations if there are any."""
    given = {"recipe": "adapt", "method": METHODS[cell.system], "quiet": True, **_settings(cell)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if activations is None:
            run = protonce.train(train, out, **given)
            loaders = [run.loader(part) for part in (train, test)]
        else:
            given = {**given, "init": "", "trained_stages": 0}
            run = protonce.train(activations.places, out, encoder=activations.tail(), views=activations.views, **given)
            loaders = activations.loaders
        scores = {
            name: score(*(extract(encoder.features, loader) for loader in loaders), train, test)
            for name, encoder in zip(("query", "twin"), run.encoders, strict=True)
        }
        return {"scores": scores, "cpu_seconds": sum(record["cpu_seconds"] for record in run.metrics)}


def _score_frozen(cell: Cell, train: Source, test: Source) -> dict[str, Any]:
    scores = {}
    for side in FROZEN_SIDES:
        with tempfile.TemporaryDirectory() as folder:
            run: Run
            run, _ = import_encoder(cell.weights, Path(folder) / "run", quiet=True, image_size=side, **ENCODER)
            known, asked = (extract(run.encoders[0].features, run.loader(part)) for part in (train, test))
        components, mean = principal_components(known, COMPONENTS)
        scores[f"{side}"] = score(known, asked, train, test)
        scores[f"{side}, PCA"] = score((known - mean) @ components.T, (asked - mean) @ components.T, train, test)
    return {"scores": scores}


def score(known: Tensor, asked: Tensor, train: Source, test: Source) -> dict[str, Any]:
    """Balanced accuracy of kNN, AMI, and which test images were right.

    Args:
        known: features of the training images, (n, D).
        asked: of the test images, (q, D).
        train: with labels.
        test: likewise.
    """
    assert train.labels is not None
    assert test.labels is not None
    names, codes = np.unique(np.array(train.labels), return_inverse=True)
    similarity, near = neighbours(known, asked, NEIGHBOURS)
    labels = np.array(test.labels)
    right = names[vote(similarity, torch.from_numpy(codes)[near], len(names), TAU).numpy()] == labels
    balanced = float(np.mean([right[labels == name].mean() for name in np.unique(labels)]))
    return {"knn": balanced, "ami": ami(asked, test.labels), "right": "".join("01"[int(r)] for r in right)}


def gain(
    results: Sequence[Mapping[str, Any]], frozen: Mapping[tuple[str, int], Mapping[str, Any]], which: str
) -> float:
    """The criterion of a trial: mean over sets and seeds of its kNN and AMI above the frozen encoder's, same size.

    Args:
        results: of the trial.
        frozen: results of the frozen encoder, by set and seed.
        which: "query" or "twin".
    """
    above = []
    for result in results:
        base = frozen[result["data"], result["seed"]]["scores"][str(SIDE)]
        above += [result["scores"][which][s] - base[s] for s in ("knn", "ami")]
    return statistics.fmean(above)


def run_all(cells: Sequence[Cell], folder: Path, jobs: int) -> list[dict[str, Any]]:
    """The results of cells in their order; those that are not there yet are trained."""
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[tuple[str, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        if not (folder / f"{cell.name}.json").exists():
            groups[cell.data, cell.seed].append(cell)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_group, group, folder) for group in groups.values()]):
            done.result()
    return [json.loads((folder / f"{cell.name}.json").read_text()) for cell in cells]


def choose(roots: Mapping[str, str], weights: str, folder: Path, jobs: int) -> dict[str, Any]:
    """All trials on the first seed, the best two on both; the best of them, and whether query or twin is kept."""

    def results(wanted: Sequence[tuple[str, dict[str, Any]]], seeds: Sequence[int]) -> list[dict[str, Any]]:
        return run_all(
            [Cell(d, r, weights, system, c, s) for s in seeds for d, r in roots.items() for system, c in wanted],
            folder,
            jobs,
        )

    def best_gain(system: str, changes: dict[str, Any], seeds: Sequence[int]) -> tuple[float, str]:
        found = results([(system, changes)], seeds)  # which are there
        return max((gain(found, frozen, which), which) for which in ("query", "twin"))

    first = CHOOSING_SEEDS[:1]
    frozen = {(r["data"], r["seed"]): r for r in results([(FROZEN, {})], CHOOSING_SEEDS)}
    results([(system, changes) for system in OWN_TRIALS for changes in trials(system)], first)
    finalists = {
        system: sorted(trials(system), key=lambda c: best_gain(system, c, first), reverse=True)[:FINALISTS]
        for system in OWN_TRIALS
    }
    results([(system, changes) for system, both in finalists.items() for changes in both], CHOOSING_SEEDS)
    chosen = {}
    for system, both in finalists.items():
        found = [(*best_gain(system, changes, CHOOSING_SEEDS), changes) for changes in both]
        value, which, changes = max(found, key=lambda one: one[0])
        chosen[system] = {"changes": changes, "encoder": which, "gain": value}
    write_whole(folder / "chosen.json", json.dumps(chosen, indent=1) + "\n")
    return chosen


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["choose", "test"])
    parser.add_argument("weights", metavar="WEIGHTS")
    for name in (*CHOOSING, *READ_ONCE):
        parser.add_argument(f"--{name}", metavar="DIR")
    parser.add_argument("--results", type=Path, default=Path("benchmarks") / "results" / "adapt")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    given = vars(options)
    roots = {
        name: given[name.replace("-", "_")]
        for name in (CHOOSING if options.stage == "choose" else READ_ONCE)
        if given[name.replace("-", "_")]
    }
    if options.stage == "choose":
        for system, found in choose(roots, options.weights, options.results, options.jobs).items():
            print(system, found)
        return
    chosen = json.loads((options.results / "chosen.json").read_text())
    cells = [Cell(d, root, options.weights, FROZEN, {}, seed) for d, root in roots.items() for seed in SEEDS]
    cells += [
        Cell(d, root, options.weights, system, found["changes"], seed)
        for d, root in roots.items()
        for seed in SEEDS
        for system, found in chosen.items()
    ]
    run_all(cells, options.results, options.jobs)


if __name__ == "__main__":
    main()
