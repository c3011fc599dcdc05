"""`protonce compare`: train systems on the same images with equal epochs or in equal time, and write one table."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from protonce.auto import DataSize, choose_recipe
from protonce.compare.budget import epochs_in, measure
from protonce.compare.cell import open_images
from protonce.compare.cells import Cell, Images, read_result
from protonce.compare.contenders import Contender, read_contenders
from protonce.compare.names import HELD_OUT, PRIMARY, SCORES, USUAL
from protonce.compare.page import write_page
from protonce.compare.planning import plan, warm_up
from protonce.compare.running import Machine, find_machine, run_cells
from protonce.compare.table import cells_of, header_of, pair_text, summarise, to_csv, to_latex
from protonce.config import Settings
from protonce.data.sources import Source, is_inside
from protonce.devices import find_device
from protonce.errors import UserError
from protonce.files import write_whole
from protonce.methods import registry
from protonce.preparation import is_pretrained
from protonce.tables import print_table

MOST_SEEDS = 1000


@dataclass(frozen=True)
class Budget:
    """What every system gets: epochs, or minutes; exactly one of them."""

    epochs: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.minutes is None):
            raise UserError("give either --epochs N or --minutes T")
        if self.minutes is not None and not 0 < self.minutes < 10**7:
            raise UserError(f"--minutes {self.minutes} must be above 0")

    @property
    def words(self) -> str:
        """For the table."""
        return f"{self.epochs} epochs each" if self.minutes is None else f"{self.minutes:g} minutes each"


def compare(
    data: str,
    out: Path,
    systems: Sequence[str],
    seeds: Sequence[int],
    *,
    test: str | None = None,
    epochs: int | None = None,
    minutes: float | None = None,
    scores: Sequence[str] = USUAL,
    baseline: str | None = None,
    held_out: float = HELD_OUT,
    jobs: int | None = None,
    recipe: str | None = None,
    quiet: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Train and score systems on the same images, print the table, and write it and a page to a folder.

    A finished training is kept and an interrupted one continues if it is called again; systems, seeds and scores may be
    added.

    Args:
        data: labelled images; the labels are not used in training, except by systems that need them.
        out: folder for compare.json, .csv, .tex, .html and the runs.
        systems: names of systems or recipes, or YAML files of settings; see `read_contenders`.
        seeds: each system is trained once with each.
        test: labelled images to test on; None: the data's own test part, or a random fifth.
        epochs: of every training; or
        minutes: time of every training, turned into a whole number of epochs by timing an epoch of each system.
        scores: names in `SCORES`.
        baseline: the row that others are paired with; None: the first that is not a bound.
        held_out: share of the training images that no system is trained on, for curves over the training.
        jobs: trainings at a time; None: one for each GPU or core.
        recipe: settings of all systems; None: chosen by the data and the device.
        quiet: print nothing.
        settings: of all systems.

    Returns:
        The content of compare.json.

    Raises:
        UserError: an argument is invalid, or a training failed.
    """
    budget = Budget(epochs, minutes)
    _check(data, out, systems, seeds, scores, held_out)
    console = Console(highlight=False, markup=False, quiet=quiet)
    images = Images(data, test, settings.pop("limit", 0), held_out)
    rows = make_rows(images, systems, settings, recipe, seeds[0])
    names = [cell.row for cell in rows]
    bounds = [cell.row for cell in rows if registry.find(cell.method).bound]
    baseline = _baseline(baseline, names, bounds)
    _check_shots(open_images(images, seeds[0]).train, scores)
    machine = find_machine(jobs, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    rows = with_epochs(rows, budget, out, machine.threads, console.print)
    cells = [replace(cell, seed=seed) for seed in seeds for cell in rows]
    train_all(cells, scores, out, machine, console.print)
    results = {cell.row: [read_result(replace(cell, seed=seed), out) for seed in seeds] for cell in rows}
    summary = {
        **summarise(results, "test", scores, baseline, bounds),
        "data": data,
        "images": next(iter(results.values()))[0]["images"],
        "seeds": list(seeds),
        "budget": budget.words,
        "settings": {cell.row: {"method": cell.method, "recipe": cell.recipe, **cell.settings} for cell in rows},
        "git": ", ".join(dict.fromkeys(cell["git"] for cells in results.values() for cell in cells if cell["git"])),
    }
    write_whole(out / "compare.json", json.dumps(summary, indent=1) + "\n")
    write_whole(out / "compare.csv", to_csv(summary))
    write_whole(out / "compare.tex", to_latex(summary))
    page = write_page(summary, {cell.row: replace(cell, seed=seeds[0]) for cell in rows}, out)
    if not quiet:
        print_summary(summary, console)
        console.print(f"Look at curves, maps and costs: {page}", soft_wrap=True)
    return summary


def _check(
    data: str, out: Path, systems: Sequence[str], seeds: Sequence[int], scores: Sequence[str], held_out: float
) -> None:
    unknown = [name for name in scores if name not in SCORES]
    if unknown:
        raise UserError(f"unknown score {unknown[0]!r}; available scores: {', '.join(SCORES)}")
    if PRIMARY not in scores:
        raise UserError(f"--scores must include {PRIMARY}, by which systems are ranked")
    if not systems:
        raise UserError(f"--systems names no system; available systems: {', '.join(registry.SYSTEMS)}")
    if not seeds or len({*seeds}) < len(seeds) or len(seeds) > MOST_SEEDS:
        raise UserError(f"--seeds must be 1 to {MOST_SEEDS} different numbers")
    for seed in seeds:
        Settings(seed=seed)
    if not 0 < held_out < 1:
        raise UserError(f"--held-out {held_out} must be between 0 and 1")
    if is_inside(out, data):
        raise UserError(f"--out {out} is inside the image folder {data}; give a folder elsewhere")


def _check_shots(train: Source, scores: Sequence[str]) -> None:
    """Refuse a number of images a class that fewer than two classes have, before hours of training."""
    shots = {name: int(name.removeprefix("shot_")) for name in scores if name.startswith("shot_")}
    sizes = sorted(Counter(train.labels or []).values(), reverse=True)
    second = sizes[1] if len(sizes) > 1 else 0  # two classes have as many
    missing = [name for name, count in shots.items() if count > second]
    if missing:
        fitting = ",".join(name for name in scores if name not in missing)
        raise UserError(
            f"fewer than two classes of {train.spec} have {shots[missing[0]]} training images, which the score "
            f"{missing[0]} needs; give --scores {fitting}"
        )


def make_rows(
    images: Images, systems: Sequence[str], settings: Mapping[str, Any], recipe: str | None, seed: int
) -> list[Cell]:
    """A cell for each system, with every setting checked before anything is trained.

    Raises:
        UserError: a system, a setting or the data is invalid.
    """
    contenders = read_contenders(systems, settings)
    source = open_images(images, seed).train
    if recipe is None:
        device = find_device(str(settings.get("device", "auto")))
        pretrained = is_pretrained(str(settings.get("init", "")))
        recipe, _ = choose_recipe(DataSize(len(source), source.side), device, pretrained)
    rows = [_row(contender, recipe, seed, images) for contender in contenders]
    for cell in rows:
        plan(cell, source)
    return rows


def _row(contender: Contender, recipe: str, seed: int, images: Images) -> Cell:
    return Cell(contender.name, contender.method, recipe, contender.settings, seed, images, on_test=True)


def with_epochs(
    rows: Sequence[Cell], budget: Budget, out: Path, threads: int, say: Callable[[str], None]
) -> list[Cell]:
    """The rows with the epochs that the budget gives each."""
    if budget.minutes is None:
        return [_set_epochs(cell, budget.epochs or 1) for cell in rows]
    trained = [cell for cell in rows if registry.find(cell.method).system.trains]
    paces = measure(trained, out, threads, say)
    found = []
    for cell in rows:
        if cell not in trained:
            found.append(_set_epochs(cell, 1))
            continue
        source = open_images(cell.images, cell.seed).train
        epochs = epochs_in(60 * budget.minutes, paces[cell.row], partial(warm_up, cell, source))
        say(f"{cell.row}: {epochs} epochs in {budget.minutes:g} minutes")
        found.append(_set_epochs(cell, epochs))
    return found


def _set_epochs(cell: Cell, epochs: int) -> Cell:
    return replace(cell, settings={**cell.settings, "epochs": epochs})


def train_all(
    cells: Sequence[Cell], scores: Sequence[str], out: Path, machine: Machine, say: Callable[[str], None]
) -> None:
    """Train the cells that are not done, or lack a score."""
    missing = [cell for cell in cells if not _is_done(cell, scores, out)]
    run_cells(missing, scores, out, machine, say)


def _is_done(cell: Cell, scores: Sequence[str], out: Path) -> bool:
    kind = "test" if cell.on_test else "held_out"
    found = read_result(cell, out).get("scores", {}).get(kind, {})
    return all(score in found for score in scores)


def _baseline(asked: str | None, names: Sequence[str], bounds: Sequence[str]) -> str:
    if asked is None:
        return next((name for name in names if name not in bounds), names[0])
    if asked not in names:
        raise UserError(f"--baseline {asked} is not one of the systems: {', '.join(names)}")
    return asked


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Print the table, and how each row compares with the baseline."""
    images, seeds = summary["images"], len(summary["seeds"])
    console.print(
        f"{images['train']:,} training images of {summary['data']}, {images['test']:,} test images, "
        f"{summary['budget']}, {seeds} {'seed' if seeds == 1 else 'seeds, mean ± deviation'}:",
        soft_wrap=True,
    )
    header = header_of(summary)
    print_table(console, "l" + "r" * (len(header) - 1), header, cells_of(summary))
    primary, baseline = summary["primary"], summary["baseline"]
    for row in summary["rows"]:
        if primary in row["pairs"] and not row["bound"]:
            pair = row["pairs"][primary]
            console.print(
                f"{row['name']} against {baseline}, {SCORES[primary].title}: {pair_text(primary, pair)} "
                f"(p = {pair['p_holm']:.3f} after Holm's correction)",
                soft_wrap=True,
            )
