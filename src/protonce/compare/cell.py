"""Train and score one cell of a comparison, in a process of its own: `python -m protonce.compare.cell`."""

import json
import resource
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from protonce.api import train
from protonce.compare.cells import CURVE, Cell, Images, read_result, write_result
from protonce.compare.scores import NEIGHBOURS, score_run
from protonce.data.sources import Source, open_source
from protonce.data.splitting import split
from protonce.errors import UserError
from protonce.evaluate.knn import knn_accuracy
from protonce.evaluate.protocols import train_and_test
from protonce.features import extract
from protonce.run import Run


class Opened(NamedTuple):
    """The images of a cell."""

    train: Source
    held_out: Source  # training images that no system is trained on
    test: Source
    how: str  # test images were parted from the others


def open_images(images: Images, seed: int) -> Opened:
    """Open the images of a cell.

    Raises:
        UserError: there are no labels, or training and test images share files.
    """
    source = open_source(images.data, "train", seed, images.limit)
    labelled, tested, how = train_and_test(source, images.data, images.test, seed)
    trained, held_out = split(labelled, seed, images.held_out)
    if not len(held_out):
        raise UserError(f"{labelled.spec} has too few images of each class to hold some out; add images")
    return Opened(trained, held_out, tested, how)


def run_cell(cell: Cell, scores: list[str], folder: Path) -> dict[str, Any]:
    """Train what is not trained yet, and compute the scores that are missing.

    Returns:
        What its file holds: the cell, scores, the curve of kNN on images held out, and its costs.
    """
    known = read_result(cell, folder)
    trained, held_out, tested, how = open_images(cell.images, cell.seed)
    run = _train(cell, trained, cell.run(folder))
    chosen = tested if cell.on_test else held_out
    kind = "test" if cell.on_test else "held_out"
    before = known.get("scores", {}).get(kind, {})
    found = {**before, **score_run(run, trained, chosen, [name for name in scores if name not in before])}
    result = {
        "row": cell.row,
        "system": run.title,
        "seed": cell.seed,
        "scores": {**known.get("scores", {}), kind: found},
        "curve": known.get("curve") or curve(run, trained, held_out),
        "costs": known.get("costs") or costs(run),
        "images": {"train": len(trained), "held_out": len(held_out), "test": len(tested), "split": how},
        "settings": run.config["settings"],
        "recipe": run.config["recipe"],
        "git": run.config["git"],
        "health": run.health._asdict(),
    }
    write_result(cell, folder, result)
    return result


def _train(cell: Cell, source: Source, out: Path) -> Run:
    every = max(cell.settings["epochs"] // CURVE, 1)
    given = {**cell.settings, "seed": cell.seed, "snapshot_every": every}
    return train(source, out, recipe=cell.recipe, resume=True, quiet=True, **given)


def curve(run: Run, train_source: Source, held_out: Source) -> list[dict[str, float]]:
    """Accuracy of kNN on images held out, and the seconds of training until then, at each snapshot of the encoder."""
    assert train_source.labels is not None
    assert held_out.labels is not None
    loaders = [run.loader(source) for source in (train_source, held_out)]
    points = []
    for epoch in run.snapshots:
        encoder = run.snapshot(epoch).to(run.device)
        known, asked = (extract(encoder.features, loader) for loader in loaders)
        accuracy = knn_accuracy(known, train_source.labels, asked, held_out.labels, k=NEIGHBOURS)
        done = run.metrics[:epoch]
        spent = {key: sum(record[key] for record in done) for key in ("seconds", "cpu_seconds")}
        points.append({"epoch": epoch, **spent, "knn": accuracy})
    return points


def costs(run: Run) -> dict[str, float]:
    """Seconds of training, and the largest memory of this process, or of its GPU."""
    on_gpu = run.settings.device == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "epochs": len(run.metrics),
        "seconds": sum(record["seconds"] for record in run.metrics),
        "cpu_seconds": sum(record["cpu_seconds"] for record in run.metrics),
        "memory": float(peak),
    }


def main(arguments: list[str]) -> int:
    """Read a cell as JSON from the standard input, and train and score it in the folder that is named."""
    given = json.load(sys.stdin)
    cell = Cell(**{**given["cell"], "images": Images(**given["cell"]["images"])})
    try:
        run_cell(cell, given["scores"], Path(arguments[0]))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
