"""`protonce runs DIR`: all runs below a folder in one table."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

from protonce.errors import UserError
from protonce.files import csv_text, write_whole
from protonce.progress import duration
from protonce.results import scores
from protonce.run import Run, load

DEEPEST = 6  # folders below DIR in which runs are looked for
COLUMNS = ("run", "system", "backbone", "data", "images", "epochs", "state", "loss", "time", "seed")
TEXTS = ("run", "system", "backbone", "data", "state")
# Columns that a narrow terminal does without, in this order; then scores, from the last.
DISPENSABLE = ("seed", "backbone", "time", "loss", "data", "images", "epochs")
SUFFIXES = (".csv", ".html")


@dataclass(frozen=True)
class Row:
    """A run in the table: what is shown, and what it is sorted by."""

    path: Path
    cells: dict[str, str]
    values: dict[str, Any]


def gather_runs(folder: Path) -> tuple[list[Row], list[str]]:
    """The runs below a folder by name, and a sentence about each that cannot be read.

    Raises:
        UserError: there are none.
    """
    rows: list[Row] = []
    problems: list[str] = []
    _gather(folder, folder, DEEPEST, rows, problems)
    if not rows:
        raise UserError(f"there are no runs below {folder}" + (f": {problems[0]}" if problems else ""))
    return sorted(rows, key=lambda row: row.cells["run"]), problems


def _gather(path: Path, folder: Path, depth: int, rows: list[Row], problems: list[str]) -> None:
    """Add the run at a path, or else those below it; a config.yaml may also be another program's."""
    try:
        if (path / "config.yaml").is_file():
            try:
                rows.append(_row(load(path), folder))
                return
            except UserError as error:
                problems.append(str(error))
        children = sorted(path.iterdir()) if depth and path.is_dir() else []
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
        return
    for child in children:
        if child.is_dir() and not child.name.startswith(".") and not child.is_symlink():
            _gather(child, folder, depth - 1, rows, problems)


def _row(run: Run, folder: Path) -> Row:
    settings, records = run.settings, run.metrics
    seconds = sum(record["seconds"] for record in records)
    loss = records[-1].get("loss") if records else None
    values: dict[str, Any] = {
        "run": run.path.relative_to(folder).as_posix() if run.path != folder else folder.resolve().name,
        "system": run.title,
        "backbone": settings.backbone,
        "data": "/".join(PurePath(run.config["data"]["source"]).parts[-2:]),
        "images": run.config["data"]["images"],
        "epochs": len(records),
        "state": _state(run),
        "loss": loss,
        "time": seconds,
        "seed": settings.seed,
    }
    scored = [record["scores"] for record in records if "scores" in record]
    watched = {f"watch {name}": score for last in scored[-1:] for name, score in last.items()}
    evaluated = {
        f"{name} {score.metric}": score.mean
        for name, result in run.evaluations.items()
        for score in scores(result)
        if score.mean is not None
    }
    cells = {name: "" if value is None else str(value) for name, value in values.items()}
    of = "" if run.finished or run.imported else f" of {settings.epochs:,}"
    cells |= {"images": f"{values['images']:,}", "epochs": f"{len(records):,}{of}" if not run.imported else ""}
    cells |= {"loss": "" if loss is None else f"{loss:.3f}", "time": duration(seconds) if records else ""}
    numbers = {**watched, **evaluated}
    return Row(run.path, {**cells, **{name: f"{value:.3f}" for name, value in numbers.items()}}, {**values, **numbers})


def _state(run: Run) -> str:
    if run.imported:
        return "imported"
    if not run.metrics:
        return "not started"
    return run.health.state if run.finished else f"not finished, {run.health.state}"


def sort_rows(rows: Sequence[Row], column: str) -> list[Row]:
    """Sorted by a column: text from A to Z, numbers from the largest; runs without a value come last.

    Raises:
        UserError: no run has this column.
    """
    known = columns(rows)
    if column not in known:
        raise UserError(f"--sort {column} is none of the columns: {', '.join(known)}")
    having = [row for row in rows if row.values.get(column) is not None]
    texts = any(isinstance(row.values[column], str) for row in having)
    having.sort(key=lambda row: str(row.values[column]).casefold() if texts else -float(row.values[column]))
    return having + [row for row in rows if row.values.get(column) is None]


def columns(rows: Sequence[Row]) -> list[str]:
    """The columns of a table: the usual ones, and every score that some run has."""
    return list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row.values)]))


def fitting(rows: Sequence[Row], width: int, wanted: str) -> list[str]:
    """The columns with content that fit into a terminal of this width; the one that is `wanted` always does."""
    chosen = [name for name in columns(rows) if any(row.cells.get(name) for row in rows)]
    needed = {name: max(len(name), *(len(row.cells.get(name, "")) for row in rows)) + 3 for name in chosen}
    scores = [name for name in chosen if name not in COLUMNS]
    for name in (*DISPENSABLE, *reversed(scores)):
        if 1 + sum(needed[one] for one in chosen) > width and name in chosen and name != wanted:
            chosen.remove(name)
    return chosen


def write_overview(rows: Sequence[Row], out: Path) -> None:
    """Write the table as .csv, or as a page whose columns can be sorted.

    Raises:
        UserError: the file has another suffix, or its folder does not exist.
    """
    if out.suffix not in SUFFIXES:
        raise UserError(f"--out {out} must end in {' or '.join(SUFFIXES)}")
    if not out.parent.exists():
        raise UserError(f"--out {out}: the folder {out.parent} does not exist")
    names = columns(rows)
    if out.suffix == ".csv":
        text = csv_text(names, [[_plain(row.values.get(name)) for name in names] for row in rows])
    else:
        text = _page(rows, names, out)
    write_whole(out, text)


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def _page(rows: Sequence[Row], names: Sequence[str], out: Path) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from protonce.report.page import csp_hash
    from protonce.report.payload import relative_address

    folder = resources.files("protonce.report") / "assets"
    environment = Environment(
        loader=PackageLoader("protonce", "report/assets"), autoescape=True, undefined=StrictUndefined
    )
    script = folder.joinpath("overview.js").read_text(encoding="utf-8")
    reports = [row.path / "report.html" for row in rows]
    return environment.get_template("overview.html").render(
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        script=script,
        hash=csp_hash(script),
        columns=names,
        texts=TEXTS,
        rows=[
            {
                "cells": [(name, row.cells.get(name, ""), _plain(row.values.get(name))) for name in names],
                "address": relative_address(str(report), out.resolve().parent) if report.exists() else "",
            }
            for row, report in zip(rows, reports, strict=True)
        ],
    )
