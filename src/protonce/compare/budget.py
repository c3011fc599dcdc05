"""How many epochs each system gets in equal time: an epoch of each is timed beforehand, systems taking turns."""

import json
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from protonce.api import train
from protonce.compare.cell import open_images
from protonce.compare.cells import Cell
from protonce.compare.planning import plan
from protonce.config import LONG
from protonce.data.sources import Source
from protonce.files import write_whole

TURNS = 3
WARM_UP = 2  # epochs of a training that is timed; the first starts up
STEPS = 100  # that are timed after it, so that what comes every few short epochs is among them
USUAL = 100  # epochs of a training whose options are timed, where `auto` chooses them by the length
FILE = "timing.json"


@dataclass(frozen=True)
class Pace:
    """Seconds of an epoch, in warm-up and after it: of the CPU, or of the clock on a GPU."""

    warm_up: float
    after: float

    def total(self, epochs: int, warm_up: int) -> float:
        """Seconds of a training."""
        return warm_up * self.warm_up + (epochs - warm_up) * self.after


def measure(cells: Sequence[Cell], folder: Path, threads: int, say: Callable[[str], None]) -> dict[str, Pace]:
    """The pace of each row, the best of three turns, because other work on the machine only makes an epoch slower.

    Rows that do the same work share their pace. What is known is kept in FOLDER/timing.json.

    Args:
        cells: one for each row; their epochs do not matter.
        folder: of the comparison.
        threads: of each training.
        say: prints a line.
    """
    path = folder / FILE
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    keys = {cell.row: _work(cell).name for cell in cells}
    missing: dict[str, Cell] = {}
    for cell in cells:
        if keys[cell.row] not in known:
            missing.setdefault(keys[cell.row], cell)
    if missing:
        say(f"timing an epoch of {', '.join(cell.row for cell in missing.values())}")
    turns: dict[str, list[Pace]] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for _ in range(TURNS if missing else 0):
        for key, cell in missing.items():
            turns.setdefault(key, []).append(time_once(cell, open_images(cell.images, cell.seed).train))
    torch.set_num_threads(before)
    for key, found in turns.items():
        paces = [asdict(pace) for pace in found]
        known[key] = {name: min(pace[name] for pace in paces) for name in paces[0]}
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(known, indent=1) + "\n")
    return {cell.row: Pace(**known[keys[cell.row]]) for cell in cells}


def _work(cell: Cell) -> Cell:
    """The cell with only the settings that determine the cost of an epoch: no rates, temperatures or weights."""
    work = {k: v for k, v in cell.settings.items() if k != "epochs" and not isinstance(v, float)}
    return replace(cell, row="", settings=work)


def time_once(cell: Cell, source: Source) -> Pace:
    """Train for a few epochs, without clusters for the record but at the end, and without worker processes.

    After warm-up, the first epoch is not counted: its E-step needs a pass over the images that later ones share with
    the record of the epoch before. Nor is the last.
    """
    usual = plan(cell, source, epochs=USUAL)
    options = asdict(usual.options)
    if "warmup_epochs" in options:
        options["warmup_epochs"] = WARM_UP
    timed = math.ceil(STEPS * usual.settings.batch_size / len(source))
    epochs = WARM_UP + 1 + timed + 1
    given: dict[str, Any] = {
        **cell.settings,
        **options,
        "epochs": epochs,
        "record_every": epochs,
        "workers": 0,
        "seed": cell.seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        run = train(source, Path(folder) / "run", recipe=cell.recipe, quiet=True, **given)
        key = "seconds" if run.settings.device == "cuda" else "cpu_seconds"
        seconds = [found[key] for found in run.metrics]
    return Pace(seconds[WARM_UP - 1], statistics.fmean(seconds[WARM_UP + 1 : -1]))


def epochs_in(seconds: float, pace: Pace, warm_up: Callable[[int], int]) -> int:
    """The largest number of epochs, at least one, that takes no longer.

    Args:
        seconds: the budget.
        pace: of the system.
        warm_up: epochs of warm-up in a training of so many epochs.
    """
    low, high = 1, 2
    while high < LONG and pace.total(high, warm_up(high)) <= seconds:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pace.total(middle, warm_up(middle)) <= seconds else (low, middle)
    return low
