"""One cell of the claim's study: train, score on images no training saw, look at the clusters, keep a JSON."""

import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_mutual_info_score
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.svm import LinearSVC

import protonce
from benchmarks import data
from protonce.compare.scores import score
from protonce.data.sources import Source
from protonce.files import write_whole
from protonce.methods.registry import owners
from protonce.run import Run, read_assignments

SHOTS = (1, 4, 16)
DRAWS = 5


def run_cell(spec: str, cell: dict[str, Any], out: Path, results: Path) -> dict[str, Any]:
    """Train one system with one setting and seed, and score it; resumes what was interrupted.

    Args:
        spec: the data.
        cell: what `benchmarks.claim.Cell` says.
        out: the run folder.
        results: where cells that are done lie, from one of which this one may start.
    """
    torch.set_num_threads(1)
    began = time.perf_counter()
    seed = cell["seed"]
    train, test = data.open_parts(spec, seed)
    if cell.get("read_before"):
        train, test = data.unread_parts(train, images_read(cell["read_before"]), cell["test_images"])
    if cell["images"] or cell["held_out"]:
        train, held_out = data.choose(train, seed, cell["images"] or len(train) - cell["held_out"], cell["held_out"])
        # Settings are chosen on training images that are held out; the test images are for the final cells alone.
        test = held_out if cell["held_out"] and cell["stage"] != "final" else test
    trained = time.perf_counter()
    run = _train(train, cell, out, results)
    trained = time.perf_counter() - trained
    train_features, test_features = (run.features(source, "backbone")[0].numpy() for source in (train, test))
    row = score(cell["system"], torch.from_numpy(train_features), torch.from_numpy(test_features), train, test)
    assert train.labels is not None
    assert test.labels is not None
    known, truth = np.array(train.labels), np.array(test.labels)
    scores = {
        "knn": row.knn,
        "ami": row.ami,
        "linear": linear_probe(train_features, known, test_features, truth),
        **{f"shot_{k}": few_shots(train_features, known, test_features, truth, k, seed) for k in SHOTS},
    }
    return {
        **cell,
        "scores": scores,
        "seconds": own_seconds(run),
        "clusters": clusters(run, train),
        # All epochs, those before an interruption too, and what was done around them.
        "wall_seconds": sum(m["seconds"] for m in run.metrics) + time.perf_counter() - began - trained,
        "health": run.health.words,
        "resolved": run.config["settings"] | {"init": cell["settings"].get("init", "")},
        "git": run.config["git"],
    }


def images_read(study: str) -> list[tuple[int, int]]:
    """Seed and number of the training images that the cells of a study drew, to train on or to choose by."""
    grid = yaml.safe_load((data.CLAIMS / f"{study}.yaml").read_text())
    choosing = [(seed, grid["images"] + grid["held_out"]) for seed in grid["choosing_seeds"]]
    return choosing + [(seed, grid["images"]) for seed in grid["seeds"]]


def _train(source: Source, cell: dict[str, Any], out: Path, results: Path) -> Run:
    settings = dict(cell["settings"])
    if "init" in settings:
        start = settings["init"]
        earlier = json.loads((results / f"{start}.json").read_text())
        # The run folder may have been removed since; then the same training is made again.
        settings["init"] = str(_train(source, earlier, out.parent / start, results).path)
    method = "pcl" if cell["system"] == "pcl" else "moco"
    # MoCo has the settings of PCL's clusters too, for the record, but not its options.
    known = {name: value for name, value in settings.items() if method in (owners(name) or [method])}
    return protonce.train(source, out, method=method, seed=cell["seed"], quiet=True, resume=True, **known)


def own_seconds(run: Run) -> float:
    """Time in training, without what was clustered for the record only: medians, as other work may slow an epoch."""
    warmup = run.options.get("warmup_epochs", math.inf)  # MoCo has none: it never needs clusters
    phases: dict[bool, list[float]] = {True: [], False: []}
    for record in run.metrics:
        for_the_record = record["epoch"] <= warmup
        extra = record.get("cluster_seconds", 0.0) + record["features_seconds"]
        phases[for_the_record].append(record["seconds"] - for_the_record * extra)
    return sum(len(seconds) * statistics.median(seconds) for seconds in phases.values() if seconds)


def linear_probe(train: NDArray[Any], known: NDArray[Any], test: NDArray[Any], truth: NDArray[Any]) -> float:
    """Accuracy of logistic regression on standardised frozen features."""
    scaler = StandardScaler().fit(train)
    model = LogisticRegression(C=0.1, max_iter=300).fit(scaler.transform(train), known)
    return float(model.score(scaler.transform(test), truth))


def few_shots(
    train: NDArray[Any], known: NDArray[Any], test: NDArray[Any], truth: NDArray[Any], k: int, seed: int
) -> float:
    """Accuracy of a linear SVM on k images a class, L2-normalised features; the mean over 5 draws by the seed."""
    scores = []
    for draw in range(DRAWS):
        generator = np.random.default_rng([seed, k, draw])
        chosen = np.concatenate([generator.permutation(np.flatnonzero(known == c))[:k] for c in np.unique(known)])
        model = LinearSVC(C=0.5, random_state=0).fit(normalize(train[chosen]), known[chosen])
        scores.append(model.score(normalize(test), truth))
    return float(np.mean(scores))


def clusters(run: Run, source: Source) -> list[dict[str, Any]]:
    """What the clusters of the training images are, at each granularity: when warm-up has ended, and at the end.

    Beside them what an image and its nearest other image share, in the same momentum features, at the end.
    """
    labels = np.array(source.labels)
    kinds = np.array([label.split("/")[0] for label in source.labels or []])
    looks = appearance(source)
    epochs = run.settings.epochs
    warm = min(run.options.get("warmup_epochs", epochs // 2) + 1, epochs)  # epoch EPOCH begins with assignments/EPOCH
    recorded = [epoch for epoch in run.recorded_epochs if epoch >= warm] or run.recorded_epochs[-1:]
    moments = {"after warm-up": read_assignments(run.path, recorded[0])}
    moments["at the end"] = [c.assignment.numpy().astype(np.int32) for c in run.prototypes]
    nearest = nearest_other(*run.features(source, "momentum"))
    seen = []
    for when, assignments in moments.items():
        seen += [
            {
                "when": when,
                "k": int(assignment.max()) + 1,
                "purity": purity(assignment, labels),
                "purity_of_kind": purity(assignment, kinds),
                "ami": float(adjusted_mutual_info_score(labels, assignment)),
                **{name: explained(values, assignment) for name, values in looks.items()},
            }
            for assignment in assignments
        ]
    seen.append(
        {
            "when": "nearest images, at the end",
            "k": len(labels),
            "purity": float((labels[nearest] == labels).mean()),
            "purity_of_kind": float((kinds[nearest] == kinds).mean()),
            "ami": 0.0,
            **{name: likeness(values, values[nearest]) for name, values in looks.items()},
        }
    )
    return seen


def nearest_other(embeddings: torch.Tensor) -> NDArray[Any]:
    """For each image the most similar other one; (n,)."""
    found = []
    for start in range(0, len(embeddings), 1024):
        similarity = embeddings[start : start + 1024] @ embeddings.T
        similarity[torch.arange(len(similarity)), torch.arange(start, start + len(similarity))] = -2
        found.append(similarity.argmax(dim=1))
    return torch.cat(found).numpy()


def purity(assignment: NDArray[Any], labels: NDArray[Any]) -> float:
    """Share of images whose label is the most frequent one of their cluster."""
    hits = sum(np.unique(labels[assignment == c], return_counts=True)[1].max() for c in np.unique(assignment))
    return float(hits / len(labels))


def appearance(source: Source) -> dict[str, NDArray[np.float64]]:
    """What images may share that is not their class: tone, contrast, and how high or far right the matter lies."""
    rows = []
    for i in range(len(source)):
        grey = np.asarray(source.load(i), dtype=np.float64).mean(axis=2)
        y, x = (axis / (length - 1) for axis, length in zip(np.indices(grey.shape), grey.shape, strict=True))
        weight = np.abs(grey - np.median(grey)) + 1e-9
        rows.append([grey.mean(), grey.std(), np.average(y, weights=weight), np.average(x, weights=weight)])
    return dict(zip(("brightness", "contrast", "height", "sideways"), np.array(rows).T, strict=True))


def explained(values: NDArray[np.float64], assignment: NDArray[Any]) -> float:
    """Share of the variance of `values` that lies between clusters, less what clusters drawn at random would take."""
    k, n = len(np.unique(assignment)), len(values)
    if k == n or values.std() == 0:
        return 0.0
    sizes = np.bincount(assignment)
    means = np.bincount(assignment, weights=values) / np.maximum(sizes, 1)
    between = float((sizes * (means - values.mean()) ** 2).sum() / ((values - values.mean()) ** 2).sum())
    return 1 - (1 - between) * (n - 1) / (n - k)


def likeness(values: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """1 where pairs have the same value, 0 where they differ as much as random pairs do."""
    return float(1 - ((values - others) ** 2).mean() / (2 * values.var())) if values.std() > 0 else 0.0


def main(arguments: Sequence[str]) -> None:
    """`python -m benchmarks.claim_cell DATA RESULTS WORK CELL`, called by `benchmarks.claim`."""
    from benchmarks.claim import Cell

    spec, results, work, text = arguments
    cell = json.loads(text)
    name = Cell(**cell).name
    result = run_cell(spec, cell, Path(work) / name, Path(results))
    write_whole(Path(results) / f"{name}.json", json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
