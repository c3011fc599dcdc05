"""All images from a few labels: accuracy of `protonce label` if `protonce suggest` or chance chooses what to label.

    python -m benchmarks.labels RUN [RUN ...] [--data DATA] [--draws 5]

The images of RUN, or DATA, have labels: they are told for the chosen images only, and the others are scored. Budgets
are 1, 2, 5 and 10 times the number of classes. Writes benchmarks/results/labels.json after each budget and choice, and
goes on from there.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import protonce
from protonce.data.sources import open_source, random_order
from protonce.files import write_whole
from protonce.label.labelling import predict
from protonce.label.suggestion import suggest
from protonce.progress import Steps

RESULT = Path(__file__).parent / "results" / "labels.json"
TIMES = (1, 2, 5, 10)  # labels, in multiples of the number of classes
BINS = 10  # of the calibration error
Choice = Callable[[Tensor, int, int], Sequence[int]]
CHOICES: dict[str, Choice] = {
    "random": lambda x, budget, draw: random_order(len(x), "labels", draw)[:budget].tolist(),
    "typiclust": lambda x, budget, draw: suggest(x, budget, [], "typiclust", draw),
    "maxherding": lambda x, budget, draw: suggest(x, budget, [], "maxherding", draw),  # the same in every draw
}


def score(features: Tensor, labels: Sequence[str], told: Sequence[int]) -> dict[str, Any]:
    """Accuracy on the images whose label was not told, and the calibration error of the confidence."""
    if len({labels[i] for i in told}) == 1:  # nothing to tell apart
        rest = np.delete(np.arange(len(labels)), told)
        others = [labels[i] for i in rest.tolist()]
        share = others.count(labels[told[0]]) / len(others)
        return {"accuracy": share, "calibration_error": 1 - share, "calibrated": False, "classifier": "none"}
    found = predict(features, {i: (labels[i],) for i in told}, seed=0)
    others = ~found.given
    right = np.array([ours == truth for ours, truth in zip(found.label, labels, strict=True)])[others]
    return {
        "accuracy": float(right.mean()),
        "calibration_error": calibration_error(found.confidence[others], right),
        "calibrated": found.calibrated,
        "classifier": found.classifier,
    }


def calibration_error(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Expected calibration error: the mean difference of confidence and accuracy over ten bins of equal width."""
    bins = np.minimum((BINS * confidence).astype(int), BINS - 1)
    gaps = [abs(confidence[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))


def study(path: str, data: str | None, draws: int, before: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All choices and budgets on the images of a run, or on `data`: what is known after each of them.

    Args:
        path: the run.
        data: images with labels; None: those of the run.
        draws: of choices that are drawn.
        before: what an earlier call found; cells of the same images, encoder and draws are kept.
    """
    run = protonce.load(path)
    source = run.source() if data is None else open_source(data)
    assert source.labels is not None, f"{source.spec} has no labels"
    classes = len({*source.labels})
    about = {
        "data": "/".join(Path(source.spec).parts[-2:]),
        "images": len(source),
        "classes": classes,
        "encoder": f"{run.settings.backbone}, {run.title}, {run.encoder_hash[:8]}",
        "draws": draws,
    }
    same = all(before.get(name) == value for name, value in about.items())
    cells = list(before["cells"]) if same else []
    (features,) = run.features(source, "backbone", steps=Steps())
    for labels, (name, choose) in itertools.product([times * classes for times in TIMES], CHOICES.items()):
        if not any((cell["labels"], cell["choice"]) == (labels, name) for cell in cells):
            chosen = [choose(features, labels, draw) for draw in range(1 if name == "maxherding" else draws)]
            found = [score(features, source.labels, told) for told in chosen]
            cells.append({"labels": labels, "choice": name, "draws": found})
            print(path, line(cells[-1]), flush=True)
            yield {**about, "cells": [*cells]}


def line(cell: dict[str, Any]) -> str:
    """A cell as text."""
    accuracy = [draw["accuracy"] for draw in cell["draws"]]
    error = statistics.fmean(draw["calibration_error"] for draw in cell["draws"])
    deviation = f" ± {100 * statistics.stdev(accuracy):.1f}" if len(accuracy) > 1 else ""
    mean = f"{100 * statistics.fmean(accuracy):.1f}{deviation} %"
    return f"{cell['labels']:4} labels, {cell['choice']:10} {mean}, calibration error {error:.3f}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--data", help="images to label; those of each run unless given")
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for path in options.runs:
        name = Path(path).name + ("" if options.data is None else f" on {'/'.join(Path(options.data).parts[-2:])}")
        for found in study(path, options.data, options.draws, result.get(name, {})):
            result[name] = found
            write_whole(RESULT, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
