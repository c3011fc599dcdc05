"""`protonce ablation`: the five rows of appendix A, with one or both terms of ProtoNCE, with and without warm-up."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from protonce.api import train
from protonce.config import read_recipe
from protonce.errors import UserError
from protonce.evaluate.options import SemisupOptions
from protonce.evaluate.protocols import evaluate, train_and_test
from protonce.evaluate.task import single_labels
from protonce.files import write_whole
from protonce.methods import registry
from protonce.methods.options.pcl import PCLOptions
from protonce.paper import TABLES
from protonce.preparation import MAY_CHANGE, Plan, Request, prepare
from protonce.progress import Reporter
from protonce.ranks import Ranks
from protonce.reported import HEADING, is_same
from protonce.tables import percent, print_table

ROWS: dict[str, dict[str, object]] = {  # what each row of the paper's table changes
    "instance only": {"method": "moco"},
    "proto only (w/o warm-up)": {"terms": "prototypes", "warmup_epochs": 0},
    "proto only (w/ warm-up)": {"terms": "prototypes"},
    "instance + proto (w/o warm-up)": {"terms": "both", "warmup_epochs": 0},
    "instance + proto (w/ warm-up)": {"terms": "both"},
}
FOLDERS = dict(zip(ROWS, ("instance", "proto-cold", "proto", "both-cold", "both"), strict=True))
PAPER = TABLES["tbl:ablation"]
RECIPE = "pcl-v1"  # of the paper's rows
MANY = 1_000_000  # images from which it is the default
HARMLESS = (*MAY_CHANGE, "recipe", "seed", "device", "kmeans_engine")  # settings that leave a run the paper's


@dataclass(frozen=True)
class Row:
    """A row of the table: accuracy of fine-tuning, mean and deviation over draws, and of a linear classifier."""

    name: str
    fine_tuning: float
    deviation: float | None  # None for a single draw
    linear: float


def run_ablation(
    data: str,
    out: Path,
    *,
    test: str | None = None,
    draws: int = 5,
    share: float = 0.01,
    quiet: bool = False,
    **settings: Any,
) -> list[Row]:
    """Train and evaluate the five rows, print them and the paper's, and write OUT/ablation.json.

    The recipe is the paper's at ImageNet's size, unless another is given. An interrupted ablation continues if it is
    called again with the same arguments.

    Args:
        data: labelled images; the labels are not used in training.
        out: a folder for the five runs.
        test: labelled images to test on; None: see `evaluate`.
        draws: number of random subsets of the labels to fine-tune on.
        share: size of these subsets; 1 % of the labels in the paper.
        quiet: print nothing.
        settings: of all runs, except `method` and `terms`; `warmup_epochs` is for the rows with warm-up.

    Raises:
        UserError: a setting or the data is invalid.
    """
    if settings.get("warmup_epochs") == 0:
        raise UserError("warmup_epochs is 0, but two rows of the ablation need a warm-up; set it above 0")
    if settings.keys() & {"terms", "method"}:
        raise UserError("terms and method are varied by the ablation; do not set them")
    SemisupOptions(shares=[share], draws=draws)
    if settings.get("init") and "recipe" not in settings:
        settings.setdefault("warmup_epochs", "auto")  # `adapt` has none
    plan = _plan(data, out, settings)
    classes = _check(plan, data, test)
    settings["recipe"] = plan.recipe
    metric = "top5" if classes > 5 else "top1"  # of five classes the true one is always among the first five
    rows: list[Row] = []
    as_paper = is_paper(settings)
    labels = ""  # how many are used, the same for all rows
    for name, varied in ROWS.items():
        Console(stderr=True, quiet=quiet, highlight=False, markup=False).print(name)
        run = train(data, out / FOLDERS[name], resume=True, quiet=quiet, **_row_settings(settings, varied))
        tuned = evaluate(run, "semisup", test=test, quiet=quiet, again=False, shares=[share], draws=draws)
        linear = evaluate(run, "linear", test=test, quiet=quiet, again=False)
        at = f"{metric}@{100 * share:g}%"
        fine_tuning, labels = tuned["metrics"][at], tuned.get("remarks", {}).get(at, "")
        as_paper = as_paper and is_same(tuned, at) and is_same(linear, "top1")
        rows.append(Row(name, fine_tuning["mean"], fine_tuning["std"], linear["metrics"]["top1"]))
    about = {"fine_tuning": metric, "share": share, "labels": labels, "draws": draws}
    result = {**about, "rows": [asdict(row) for row in rows]}
    write_whole(out / "ablation.json", json.dumps(result, indent=2) + "\n")
    if not quiet:
        print_rows(rows, metric, share, labels, out, as_paper)
    return rows


def _row_settings(settings: Mapping[str, Any], varied: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a row: of those that all rows are given what its system has."""
    entry = registry.find(str(varied.get("method", "pcl")))
    shared = {name: value for name, value in settings.items() if name not in PCLOptions.names()}
    return {**shared, **registry.part_recipe(settings, entry), **varied, "method": entry.name}


def _plan(data: str, out: Path, settings: Mapping[str, Any]) -> Plan:
    """The plan of the last row."""
    given = {name: value for name, value in settings.items() if name != "recipe"}
    last = out / FOLDERS["instance + proto (w/ warm-up)"]
    request = Request(data, last, settings.get("recipe"), "pcl", True, given)
    plan = prepare(request, Reporter(quiet=True), Ranks())
    if request.recipe is None and plan.previous is None and len(plan.source) >= MANY:
        plan = prepare(dataclasses.replace(request, recipe=RECIPE), Reporter(quiet=True), Ranks())
    return plan


def _check(plan: Plan, data: str, test: str | None) -> int:
    """How many classes there are.

    Raises:
        UserError: rows cannot differ, or images cannot be evaluated, which would be noticed after days of training.
    """
    epochs, warmup = plan.settings.epochs, plan.config["settings"]["warmup_epochs"]
    if not 0 < warmup < epochs:
        raise UserError(
            f"with {epochs} epochs the warm-up takes {warmup}, so rows would not differ; "
            "train for more epochs, or set --warmup-epochs"
        )
    labelled, _, _ = train_and_test(plan.source, data, test, plan.settings.seed)
    return len(set(single_labels(labelled)))  # fine-tuning takes one class an image


def is_paper(settings: Mapping[str, Any]) -> bool:
    """Whether runs with these settings are trained as the paper's rows."""
    theirs = read_recipe(RECIPE)
    changed = [name for name, value in settings.items() if name not in HARMLESS and theirs.get(name) != value]
    return settings.get("recipe") == RECIPE and not changed


def print_rows(rows: list[Row], metric: str, share: float, labels: str, out: Path, as_paper: bool) -> None:
    """Print the rows, and the paper's: beside them if they were trained and evaluated in the same way, else below."""
    console = Console(highlight=False, markup=False)
    theirs = {row.system: [value.text for value in row.values if value] for row in PAPER.rows}
    tuned = f"{metric.replace('top', 'top-')}, {100 * share:g} % of the labels"
    cells = [(row.name, percent(row.fine_tuning, row.deviation), percent(row.linear)) for row in rows]
    if as_paper:
        beside = [(a, b, theirs[a][0], c, theirs[a][1]) for a, b, c in cells]
        print_table(console, "lrrrr", ("method", tuned, "the paper's", "linear, top-1", "the paper's"), beside)
    else:
        print_table(console, "lrr", ("method", tuned, "linear, top-1"), cells)
        console.print(f"{HEADING} ({PAPER.rows[0].encoder})")
        header = ("method", "top-5, 1 % of the labels", "linear, top-1")
        print_table(console, "lrr", header, [(name, *values) for name, values in theirs.items()])
    used = labels or f"{100 * share:g} % of the labels"
    console.print(
        f"per cent; fine-tuned on {used}; one seed of training; kept as {out / 'ablation.json'}", soft_wrap=True
    )
