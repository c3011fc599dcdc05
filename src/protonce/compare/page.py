"""The page of a comparison: the table, kNN over training time, maps side by side, costs, and the paper's numbers."""

import base64
import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from protonce.compare.cell import open_images
from protonce.compare.cells import Cell
from protonce.compare.names import SCORES
from protonce.compare.table import cells_of, header_of, pair_text
from protonce.data.sources import Source
from protonce.files import write_whole
from protonce.methods import registry
from protonce.paper import TABLES
from protonce.report import drawing
from protonce.report.charts import Chart, Line
from protonce.report.hierarchy import Floats, classes_of
from protonce.report.scatter import tsne
from protonce.run import load
from protonce.shortening import shorten

POINTS = 1_000  # test images on the maps
MAPS_IN_A_ROW = 3
PAPER = ("tbl:linear", "tbl:knn", "tbl:ami")


def write_page(summary: Mapping[str, Any], cells: Mapping[str, Cell], out: Path) -> Path:
    """Write OUT/compare.html.

    Args:
        summary: what `summarise` found, with data, seeds and budget.
        cells: a trained cell of each row, for the maps.
        out: folder of the comparison.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader("protonce", folder) for folder in ("compare", "report/assets")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    pairs = [
        (row["name"], [pair_text(s, row["pairs"][s]) if s in row["pairs"] else "" for s in summary["scores"]])
        for row in summary["rows"]
        if row["pairs"] and not row["bound"]
    ]
    path = out / "compare.html"
    parts = {
        "summary": summary,
        "style": (resources.files("protonce.report") / "assets" / "page.css").read_text(encoding="utf-8"),
        "header": header_of(summary),
        "rows": cells_of(summary),
        "titles": [SCORES[s].title for s in summary["scores"]],
        "pairs": pairs,
        "curves": [drawing.svg(drawing.draw_chart(chart)) for chart in curves(summary)],
        "maps": [base64.b64encode(png).decode() for png in maps(cells, out)],
        "costs": [_cost_cells(row) for row in summary["rows"]],
        "paper": from_paper([cell.method for cell in cells.values()]),
        "settings": {name: shlex.join(_words(values)) for name, values in summary["settings"].items()},
    }
    write_whole(path, environment.get_template("page.html").render(parts))
    return path


def curves(summary: Mapping[str, Any]) -> list[Chart]:
    """Curves of kNN on images held out, over CPU time and over epochs: a line for each system."""
    charts = []
    for key, unit, x in (("cpu_seconds", 60.0, "minutes of CPU time"), ("epoch", 1.0, "epoch")):
        lines = []
        for row in summary["rows"]:
            points = row["curve"]
            if not points:
                continue
            y = [100 * p["mean"] for p in points]
            spread = [100 * p["std"] for p in points] if points[0]["std"] is not None else None
            low = None if spread is None else [a - b for a, b in zip(y, spread, strict=True)]
            high = None if spread is None else [a + b for a, b in zip(y, spread, strict=True)]
            lines.append(Line(row["name"], [p[key] / unit for p in points], y, low, high))
        caption = "kNN accuracy on training images held out, k = 20; bands: one standard deviation over seeds."
        charts.append(Chart(f"knn-{key}", f"kNN over {x}", caption, x, "kNN %", lines))
    return [chart for chart in charts if chart.lines]


def maps(cells: Mapping[str, Cell], out: Path) -> list[bytes]:
    """t-SNE of the same test images by each system, as PNG, a few systems a picture."""
    places: dict[str, Floats] = {}
    sample: Source | None = None
    for row, cell in cells.items():
        if not (cell.run(out) / "config.yaml").exists():  # the results are kept, the run was removed
            continue
        tested = open_images(cell.images, cell.seed).test
        chosen = np.random.default_rng(0).permutation(len(tested))[:POINTS]
        sample = tested.subset(np.sort(chosen))
        place = tsne(load(cell.run(out)).features(sample, "backbone")[0])
        if place is not None:
            places[row] = place
    if sample is None or not places:
        return []
    names, groups = classes_of(sample.labels)
    assert groups is not None
    titles = [shorten(name, 30) for name in names]
    rows = list(places)
    return [
        drawing.png(drawing.draw_map({row: places[row] for row in rows[i : i + MAPS_IN_A_ROW]}, groups, titles), 110)
        for i in range(0, len(rows), MAPS_IN_A_ROW)
    ]


def _cost_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    costs = row["costs"]
    return (
        row["name"],
        str(costs["epochs"]),
        f"{costs['cpu_seconds_per_epoch']:.2f}",
        f"{costs['seconds_per_epoch']:.2f}",
        f"{costs['cpu_seconds'] / 60:.2f}",
        f"{costs['memory'] / 2**20:,.0f}",
    )


def from_paper(methods: list[str]) -> list[dict[str, Any]]:
    """The paper's tables, for the systems that are compared and stand in them."""
    wanted = {name for method in methods for name in registry.find(method).paper}
    found = []
    for label in PAPER:
        table = TABLES[label]
        rows = [
            (row.system, row.encoder, *(value.text + value.mark if value else "" for value in row.values))
            for row in table.rows
            if row.system in wanted
        ]
        if rows:
            title = f"Table {table.number}: {table.what}"
            found.append({"title": title, "header": ("system", "encoder", *table.columns), "rows": rows})
    return found


def _words(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]
