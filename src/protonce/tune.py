"""`protonce tune`: the six trials of a system on images held out, so that every row of a table gets the same effort."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from protonce.compare.cell import open_images
from protonce.compare.cells import Cell, Images, read_result
from protonce.compare.comparison import Budget, make_rows, train_all, with_epochs
from protonce.compare.names import HELD_OUT_TO_TUNE, PRIMARY, SCORES
from protonce.compare.planning import plan
from protonce.compare.running import find_machine
from protonce.compare.table import over_seeds, score_text
from protonce.data.sources import is_inside
from protonce.errors import UserError
from protonce.files import write_whole
from protonce.tables import print_table

FINALISTS = 2  # trials that are trained with every seed; the others with the first only
TRIED = ("knn", "ami", "linear")  # scores of a trial; they need no certain number of images a class


def tune(
    data: str,
    out: Path,
    system: str,
    *,
    seeds: Sequence[int] = (0,),
    trials: int = 6,
    test: str | None = None,
    epochs: int | None = None,
    minutes: float | None = None,
    held_out: float = HELD_OUT_TO_TUNE,
    jobs: int | None = None,
    recipe: str | None = None,
    quiet: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Train the trials of a system, choose the best by kNN on images held out, and write its settings as YAML.

    Every trial is trained with the first seed; the best two with all seeds, and their mean decides. Test images are not
    read.

    Args:
        data: labelled images.
        out: folder for tune.json, SYSTEM.yaml and the runs.
        system: name of a system or recipe, or a YAML file; as for `compare`.
        seeds: other than those of the comparison.
        trials: how many of the system's six trials.
        test: test images, if they are part of DATA, so that they are left out.
        epochs: of every trial; or
        minutes: time of every trial.
        held_out: share of the training images to choose by.
        jobs: trainings at a time; None: one for each GPU or core.
        recipe: settings to start from; None: chosen by the data and the device.
        quiet: print nothing.
        settings: to start from.

    Returns:
        The content of tune.json.

    Raises:
        UserError: an argument is invalid, or a training failed.
    """
    if not seeds or len({*seeds}) < len(seeds):
        raise UserError("--seeds must be different numbers")
    if is_inside(out, data):
        raise UserError(f"--out {out} is inside the image folder {data}; give a folder elsewhere")
    budget = Budget(epochs, minutes)
    console = Console(highlight=False, markup=False, quiet=quiet)
    images = Images(data, test, settings.pop("limit", 0), held_out)
    (base,) = make_rows(images, [system], settings, recipe, seeds[0])
    machine = find_machine(jobs, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    tried = make_trials(with_epochs([base], budget, out, machine.threads, console.print)[0], trials)
    cells = with_epochs(list(tried.values()), budget, out, machine.threads, console.print)
    train_all(cells, TRIED, out, machine, console.print)
    finalists = _best(cells, out, seeds[:1])[:FINALISTS]
    again = [replace(cell, seed=seed) for seed in seeds[1:] for cell in finalists]
    train_all(again, TRIED, out, machine, console.print)
    best = _best(finalists, out, seeds)[0]
    values = trial_values(cells)
    result = {
        "system": base.row,
        "data": data,
        "seeds": list(seeds),
        "budget": budget.words,
        "held_out": held_out,
        "trials": [
            {
                "change": _change(base, cell),
                "finalist": cell in finalists,
                "scores": _scores(cell, out, seeds if cell in finalists else seeds[:1]),
            }
            for cell in cells
        ],
        "chosen": _change(base, best),
        "at_edges": at_edges(values, values[cells.index(best)]),
    }
    write_whole(out / "tune.json", json.dumps(result, indent=1) + "\n")
    chosen = out / f"{base.row}.yaml"
    write_whole(chosen, yaml.safe_dump({"method": base.method, **_own(settings, best)}, sort_keys=False))
    if not quiet:
        _print(result, chosen, console)
    return result


def make_trials(base: Cell, count: int) -> dict[str, Cell]:
    """The first trials of the system, by name.

    Raises:
        UserError: the system does not have as many.
    """
    resolved = plan(base, open_images(base.images, base.seed).train)
    changes = resolved.options.trials(resolved.settings, len(resolved.source))
    if not 1 <= count <= len(changes):
        raise UserError(f"--trials {count} must be from 1 to {len(changes)}, the trials of {base.method}")
    found = {}
    for i, change in enumerate(changes[:count]):
        name = f"{base.row}-{i}"
        found[name] = replace(base, row=name, settings={**base.settings, **change}, on_test=False)
    return found


def trial_values(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """What each trial has for the settings in which some of them differ, but for epochs, which follow from a time."""
    images = open_images(cells[0].images, cells[0].seed).train
    resolved = [plan(cell, images) for cell in cells]
    values = [{**asdict(found.settings), **asdict(found.options)} for found in resolved]
    differing = [name for name in values[0] if any(other[name] != values[0][name] for other in values)]
    names = [name for name in differing if name != "epochs"]
    return [{name: found[name] for name in names} for found in values]


def at_edges(trials: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of which the chosen value is the smallest or the largest that was tried, so a better one may lie beyond.

    Args:
        trials: settings and values of each trial.
        chosen: those of one of them.
    """
    edges = {}
    for name, value in chosen.items():
        tried = [trial[name] for trial in trials]
        is_ordered = all(isinstance(x, int | float | list) and not isinstance(x, bool) for x in tried)
        if is_ordered and value in (min(tried), max(tried)):
            edges[name] = value
    return edges


def _best(cells: Sequence[Cell], out: Path, seeds: Sequence[int]) -> list[Cell]:
    """Best mean kNN first; of equal ones the earlier."""
    return sorted(cells, key=lambda cell: -_scores(cell, out, seeds)[PRIMARY]["mean"])


def _scores(cell: Cell, out: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Mean, deviation and the value of each seed of every score on images held out."""
    found = {seed: read_result(replace(cell, seed=seed), out)["scores"]["held_out"] for seed in seeds}
    return {name: over_seeds({seed: result[name] for seed, result in found.items()}) for name in TRIED}


def _change(base: Cell, cell: Cell) -> dict[str, Any]:
    return {k: v for k, v in cell.settings.items() if base.settings.get(k) != v and k != "epochs"}


def _own(shared: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """What the chosen trial sets beside the settings that were given."""
    return {k: v for k, v in cell.settings.items() if shared.get(k) != v and k not in ("method", "epochs")}


def _print(result: Mapping[str, Any], chosen: Path, console: Console) -> None:
    header = ("trial", "seeds", *(SCORES[name].title for name in TRIED))
    rows = []
    for trial in result["trials"]:
        words = ", ".join(f"{name} {value}" for name, value in trial["change"].items()) or "as it is"
        seeds = str(len(trial["scores"][PRIMARY]["seeds"]))
        rows.append((words, seeds, *(score_text(name, trial["scores"][name]) for name in TRIED)))
    print_table(console, "l" + "r" * (len(header) - 1), header, rows)
    words = ", ".join(f"{name} {value}" for name, value in result["chosen"].items()) or "as it is"
    if result["at_edges"]:
        edges = ", ".join(f"{name} {value}" for name, value in result["at_edges"].items())
        console.print(f"at the edge of what was tried: {edges}; better values may lie beyond", soft_wrap=True)
    console.print(
        f"chosen by kNN on images held out: {words}; kept as {chosen}, for `protonce compare --systems {chosen}`",
        soft_wrap=True,
    )
