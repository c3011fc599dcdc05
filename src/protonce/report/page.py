"""`protonce report`: a run folder in, one self-contained page out."""

import base64
import gzip
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from protonce.config import Settings, read_recipe
from protonce.data.sources import Data
from protonce.files import write_whole
from protonce.paper import BESIDE
from protonce.progress import Steps, duration
from protonce.report import charts, drawing, scatter
from protonce.report.charts import Chart
from protonce.report.content import Content, gather, title, titled
from protonce.report.hierarchy import Ints, Level, classes_of, levels, purity
from protonce.report.thumbnails import COLUMNS, ROWS, draw
from protonce.run import Run

LISTED = 100_000  # images the page knows by name


def write_report(
    run: Run, *, data: Data | None = None, against: Run | None = None, figures: Path | None = None, quiet: bool = False
) -> Path:
    """Write RUN/report.html.

    Args:
        run: with at least one epoch; what an interrupted run does not have yet is left out, and said.
        data: the images it was trained on, where they are no longer at the place the run knows.
        against: another run, to be shown beside it.
        figures: a folder for the figures as PNG and PDF.
        quiet: say nothing.

    Raises:
        UserError: no epoch has ended, or `against` has not.
    """
    steps = Steps(quiet)
    content = gather(run, data, against, steps)
    curves = {"training": charts.training(run, content.labels), "evaluations": charts.evaluations(run.evaluations)}
    runs = titled(run, against).items()
    curves["training"] += charts.sizes({t: content.hierarchy if r is run else levels(r, None) for t, r in runs})
    path = run.path / "report.html"
    with steps.doing("page"):
        write_whole(path, render(content, curves))
    if figures is not None:
        with steps.doing("figures"):
            _write_figures(content, [*curves["training"], *curves["evaluations"]], figures)
    return path


# The page


def render(content: Content, curves: Mapping[str, Sequence[Chart]]) -> str:
    """The page as text. Whatever the user's disk holds reaches it as text only."""
    from bokeh.resources import INLINE
    from jinja2 import Environment, PackageLoader, StrictUndefined

    folder = resources.files("protonce.report")
    scripts = [folder.joinpath("page.js").read_text(encoding="utf-8")]
    if content.places:
        inline = INLINE.clone(components=["bokeh"])
        scripts = [*inline.js_raw[:1], *scripts]
    environment = Environment(loader=PackageLoader("protonce", "report"), autoescape=True, undefined=StrictUndefined)
    environment.filters["svg"] = lambda chart: drawing.svg(drawing.draw(chart))
    run = content.run
    return environment.get_template("page.html").render(
        title=title(run),
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        scripts=scripts,
        hashes=[_csp_hash(script) for script in scripts],
        data=_packed(_data(content)),
        facts=_facts(content),
        health=run.health,
        results=_results(run),
        curves=curves,
        evaluations=run.evaluations,
        details={name: _details(result) for name, result in run.evaluations.items()},
        command=_command(run),
        config=run.config,
        sampled=_sampled(content),
        has_map=bool(content.places),
        missing=content.missing,
    )


def _details(result: Mapping[str, Any]) -> str:
    return json.dumps({name: result.get(name) for name in ("settings", "data")}, indent=2, ensure_ascii=False)


def _csp_hash(script: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"


def _packed(data: Mapping[str, Any]) -> str:
    """JSON, compressed, as base64: nothing in it can be taken for HTML."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def _data(content: Content) -> dict[str, Any]:
    """What the script of the page knows. Images are numbered as listed, not as in the run."""
    n = len(content.names)
    listed = np.arange(n)
    if n > LISTED:
        must = content.sample if content.thumbnails is None else content.thumbnails.images
        listed = np.union1d(must, draw(n, LISTED - len(must)))
    place = np.full(n, -1, dtype=np.int64)
    place[listed] = np.arange(len(listed))
    classes, codes = classes_of(content.labels)
    data: dict[str, Any] = {
        "names": [content.names[i] for i in listed],
        "classes": classes,
        "labels": None if codes is None else codes[listed].tolist(),
        "levels": [_level(level, listed, codes) for level in content.hierarchy],
        "outliers": [[int(place[i]), _short(d)] for i, d in content.outliers],
        "alike": [[int(place[i]), int(place[j]), _short(d)] for i, j, d in content.alike],
        "thumbnails": None,
        "map": None,
    }
    if content.thumbnails is not None:
        found = content.thumbnails
        data["thumbnails"] = {
            "images": place[found.images].tolist(),
            "side": found.side,
            "columns": COLUMNS,
            "rows": ROWS,
            "sheets": found.sheets,
        }
    if content.places:
        data["map"] = {"images": place[content.sample].tolist(), "plots": scatter.figures(content.places)}
    return data


def _level(level: Level, listed: Ints, codes: Ints | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "assignment": level.assignment[listed].tolist(),
        "size": level.size.tolist(),
        "parent": None if level.parent is None else level.parent.tolist(),
        "phi": None if level.concentration is None else [_short(v) for v in level.concentration.tolist()],
        "distance": None if level.distance is None else [_short(v) for v in level.distance[listed].tolist()],
        "purity": None,
        "label": None,
    }
    if codes is not None:
        share, label = purity(level.assignment, codes)
        found |= {"purity": [_short(v) for v in share.tolist()], "label": label.tolist()}
    return found


def _short(value: float) -> float | None:
    """Four digits; None for infinity, which JSON does not know."""
    return float(f"{value:.4g}") if np.isfinite(value) else None


def _facts(content: Content) -> dict[str, str]:
    """At a glance: what was trained, on what, for how long."""
    run, settings = content.run, content.run.settings
    records = run.metrics
    done = len(records)
    classes = f", {len(set(content.labels)):,} classes (training never saw them)" if content.labels else ", no labels"
    encoder = "an encoder of the user's own"
    if not run.config["data"].get("own_encoder"):
        encoder = f"{settings.backbone}" + (f", width {settings.width}" if settings.width else "")
    return {
        "Images": f"{len(content.names):,} of {run.config['data']['source']}{classes}",
        "System": f"{title(run).split(' (')[0]}, recipe {run.config['recipe']}",
        "Encoder": encoder,
        "Epochs": f"{done:,}" if run.finished else f"{done:,} of {settings.epochs:,}: the run has not ended",
        "Time": duration(sum(r["seconds"] for r in records)) + f" on {settings.device}",
        "Prototypes": " / ".join(f"{len(level.size):,}" for level in content.hierarchy) + ", coarse to fine",
        "Seed": str(settings.seed),
    }


def _results(run: Run) -> list[dict[str, str]]:
    """A row for each number of each evaluation, and what the paper prints for it."""
    rows = []
    for name, result in run.evaluations.items():
        for metric, value in result["metrics"].items():
            paper = BESIDE.get((result["protocol"], metric))
            theirs = ", ".join(f"{system} {score:.3f}" for system, score in paper.scores.items()) if paper else ""
            tested = result.get("data", {}).get("test", {})
            rows.append(
                {
                    "evaluation": name,
                    "metric": metric,
                    "value": f"{value['mean']:.3f} ± {value['std']:.3f}" if isinstance(value, dict) else f"{value:.3f}",
                    "runs": str(len(value.get("runs", []))) if isinstance(value, dict) else "1",
                    "data": f"{tested['images']:,} images of {tested['source']}" if tested else "",
                    "paper": f"{paper.what}: {theirs}" if paper else "",
                }
            )
    return rows


def _sampled(content: Content) -> list[str]:
    """What the page leaves out, in words."""
    n = len(content.names)
    said = []
    if content.thumbnails is not None and len(content.thumbnails.images) < n:
        said.append(
            f"Thumbnails of {len(content.thumbnails.images):,} of {n:,} images: those nearest to prototypes, the odd "
            "ones, and a random sample"
        )
    if content.places and len(content.sample) < n:
        said.append(f"the map shows {len(content.sample):,} of them, drawn at random")
    if n > LISTED:
        said.append(f"names of {LISTED:,} images; sizes and purities are of all")
    return said


def _command(run: Run) -> str:
    """The command that trains the run again."""
    asked, recipe = run.config["asked"], run.config["recipe"]
    usual = {**vars(Settings()), **read_recipe(recipe)}
    options = [
        f"--{name.replace('_', '-')} {shlex.quote(str(value).strip('[]').replace(' ', ''))}"
        for name, value in asked.items()
        if name in usual and value != usual[name]
    ]
    source = shlex.quote(run.config["data"]["source"])
    return " ".join([f"protonce train {source} --recipe {recipe}", *options, "--out RUN"])


def _write_figures(content: Content, curves: Sequence[Chart], folder: Path) -> None:
    for chart in curves:
        drawing.save(drawing.draw(chart), folder, chart.name)
    if content.places:
        coarsest = content.hierarchy[0]
        titles, groups = [f"prototype {i}" for i in range(len(coarsest.size))], coarsest.assignment
        classes, codes = classes_of(content.labels)
        if codes is not None:
            titles, groups = classes, codes
        drawing.save(drawing.draw_map(content.places, groups[content.sample], titles), folder, "map")
    if content.source is not None and content.source.sizes is not None:
        drawing.save(drawing.draw_clusters(content.source, content.hierarchy), folder, "clusters")
