"""`protonce report`: write a self-contained HTML page about a run."""

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from protonce import manifest
from protonce.config import Settings, read_recipe
from protonce.data.sources import Data, is_inside
from protonce.errors import UserError
from protonce.methods.registry import SYSTEMS
from protonce.progress import Steps, duration
from protonce.report import charts, drawing, evaluations
from protonce.report.charts import Chart
from protonce.report.content import Content, gather, title, titled
from protonce.report.evaluations import AGREEMENT, Evaluation
from protonce.report.hierarchy import Level, classes_of, levels
from protonce.report.payload import CLOSEST, LISTED, packed, payload
from protonce.report.thumbnails import pack
from protonce.reported import HEADING
from protonce.results import from_paper
from protonce.run import Run
from protonce.shortening import enumerate_names, shorten

LEGEND = 30  # characters of a class in the legend of the map
BYTES = 19_000_000  # maximum size of the page
# Scripts of the page, in the order in which they are joined to one module.
MODULE = ("data", "labels", "elements", "selection", "large", "labelling", "clusters", "map", "views")
VERDICTS = {
    "healthy": "Training looks healthy.",
    "collapsed": "Training has collapsed: the encoder gives all images nearly the same features.",
    "diverging": "Training is getting worse.",
    "idle": "Little has been learnt yet.",
    "fragmented": "Most clusters hold a single image.",
    "untrained": "This encoder is not trained.",
}


def write_report(
    run: Run,
    *,
    data: Data | None = None,
    against: Run | None = None,
    classes: int | Sequence[str] | None = None,
    figures: Path | None = None,
    quiet: bool = False,
) -> Path:
    """Write RUN/report.html.

    Args:
        run: with at least one finished epoch; for an interrupted run the page says what is missing.
        data: the images it was trained on, if they have moved.
        against: another run to compare with.
        classes: what the map shows: the first N classes in alphabetical order, or these; None: images of all.
        figures: a folder for the figures as PNG and PDF.
        quiet: print nothing.

    Raises:
        UserError: no epoch is finished, `against` is not finished, a class does not exist, or `figures` is inside the
            image folder.
    """
    place = run.config["data"]["source"] if data is None else data
    if figures is not None and is_inside(figures, place):
        raise UserError(f"--figures {figures} is inside the image folder {place}; give a folder elsewhere")
    manifest.check_writable(run.path)
    steps = Steps(quiet)
    content = gather(run, data, against, classes, steps)
    with steps.doing("curves"):
        evaluated = evaluations.gather(titled(run, against))
        curves = {
            "training": [
                *charts.training(run, content.labels),
                *charts.information(_on_same_images(run, against)),
                *charts.sizes(_sizes(content)),
            ],
            "evaluations": charts.evaluations(evaluated),
        }
    path = run.path / "report.html"
    manifest.write(run.path, path.name, render(content, evaluated, curves, steps))
    if figures is not None:
        with steps.doing("figures"):
            _write_figures(content, [*curves["training"], *curves["evaluations"]], figures)
    return path


def _sizes(content: Content) -> dict[str, Sequence[Level]]:
    """Hierarchies to compare in histograms: runs on the same images, titled with how φ is estimated if that differs."""
    runs = _on_same_images(content.run, content.against)
    differ = len({one.settings.concentration for one in runs.values()}) > 1
    found: dict[str, Sequence[Level]] = {}
    for name, one in runs.items():
        also = f", φ {one.settings.concentration}" if differ else ""
        found[name + also] = content.hierarchy if one is content.run else levels(one, None)
    return found


def _on_same_images(run: Run, other: Run | None) -> dict[str, Run]:
    """The runs by title whose clusters can be compared; the other one comes first."""
    same = other is not None and other.config["data"]["fingerprint"] == run.config["data"]["fingerprint"]
    return titled(run, other if same else None)


def render(
    content: Content, evaluated: Sequence[Evaluation], curves: Mapping[str, Sequence[Chart]], steps: Steps
) -> str:
    """Render the page. File names and labels are escaped."""
    from bokeh.resources import INLINE
    from jinja2 import Environment, PackageLoader, StrictUndefined

    folder = resources.files("protonce.report") / "assets"
    module = "\n".join(folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in MODULE)
    bokeh = INLINE.clone(components=["bokeh"]).js_raw[0] if content.places else ""
    loader = PackageLoader("protonce", "report/assets")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    run = content.run
    health = run.health if run.metrics else None
    with steps.doing("figures of the page"):
        drawn = {name: [_figure(chart) for chart in found] for name, found in curves.items()}
        still = base64.b64encode(drawing.png(_map(content), 110)).decode() if content.places else ""
    parts: dict[str, Any] = {
        "title": title(run),
        "style": folder.joinpath("page.css").read_text(encoding="utf-8"),
        "module": module,
        "bokeh": bokeh,  # runs when the map is drawn
        "hashes": [csp_hash(script) for script in (bokeh, module)],
        "facts": _facts(content),
        "health": health,
        "verdict": VERDICTS[health.state] if health else "",
        "runs": list(titled(run, content.against)),
        "evaluations": evaluated,
        "beside": [n for n in ("chance", "untrained") if any(getattr(row, n) for e in evaluated for row in e.rows)],
        "agreement": any(row.words.startswith(AGREEMENT) for e in evaluated for row in e.rows),
        "same_as_paper": any(row.paper for e in evaluated for row in e.rows),
        "evaluate": _evaluate_command(content),
        "label_command": f"{_command_on(run, 'label')} labels.csv --out predictions.csv",
        "heading": HEADING,
        "reported": from_paper(score for e in evaluated for row in e.rows for score in row.scores.values() if score),
        "figures": drawn,
        "still": still,  # the map for printing
        "command": _command(run),
        "imported": run.imported,
        "config": run.config,
        "sampled": _sampled(content),
        "about_map": _about_map(content, content.on_map) if content.on_map is not None else "",
        "known": content.hierarchy[0].distance is not None,  # whether distances to prototypes are known
        "missing": content.missing,
    }
    template = environment.get_template("page.html")
    parts["data"] = packed(payload(content))
    sheets: list[str] = []
    if content.source is not None and len(content.pictured):
        room = BYTES - len(template.render(parts, sheets=[]).encode("utf-8", "surrogateescape"))
        with steps.doing(f"thumbnails of {len(content.pictured):,} images", len(content.pictured)) as seen:
            found = pack(content.source, content.pictured, room * 3 // 4, seen)  # base64 adds a third
        sheets = [base64.b64encode(sheet).decode() for sheet in found.sheets]
    return template.render(parts, sheets=sheets)


def csp_hash(script: str) -> str:
    """The entry of a script in a Content-Security-Policy."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"


def _figure(chart: Chart) -> dict[str, Any]:
    """A chart for the page: drawn, and as a table with a column for each x."""
    xs = sorted({x for line in chart.lines for x in line.x})
    rows = [(line.name, dict(zip(line.x, line.y, strict=True))) for line in chart.lines]
    table = [(name, [f"{values[x]:.4g}" if x in values else "" for x in xs]) for name, values in rows]
    return {"chart": chart, "svg": drawing.svg(drawing.draw_chart(chart)), "xs": [f"{x:g}" for x in xs], "table": table}


def _facts(content: Content) -> dict[str, str]:
    """Summary of what was trained, on which data and for how long."""
    run, settings = content.run, content.run.settings
    records = run.metrics
    done = len(records)
    classes = ", no labels"
    if content.labels:
        without = content.labels.count("")
        some = f", {len(content.labels) - without:,} of them labelled" if without else ""
        saw = "used in training" if run.uses_labels else "not used in training"
        classes = f"{some}, {len({*content.labels} - {''}):,} classes ({saw})"
    encoder = "custom" if run.config["data"]["own_encoder"] else settings.backbone
    if encoder == settings.backbone and settings.width != Settings().width:
        encoder += f", width {settings.width}"
    facts = {"Images": f"{len(content.names):,} of {run.config['data']['source']}{classes}"}
    if run.imported:
        facts |= {"System": f"imported from {run.imported}", "Encoder": encoder}
    else:
        facts |= {
            "System": f"{run.title}, recipe {run.config['recipe']}",
            "Encoder": encoder,
            "Epochs": f"{done:,}" if run.finished else f"{done:,} of {settings.epochs:,}: the run is not finished",
            "Time": duration(sum(r["seconds"] for r in records)) + f" on {settings.device}",
        }
    clusters = " / ".join(f"{len(level.size):,}" for level in content.hierarchy) + ", coarse to fine"
    if not run.finished:
        clusters += f", of the beginning of epoch {run.recorded_epochs[-1]:,}"
    return {**facts, "Clusters": clusters, "Seed": str(settings.seed)}


def _sampled(content: Content) -> list[str]:
    """Sentences about what the page shows only a sample of."""
    n = len(content.names)
    said = []
    if 0 < len(content.pictured) < n:
        said.append(
            f"Thumbnails of {len(content.pictured):,} of {n:,} images: those to label first, look-alikes, outliers, "
            "those closest to the centres of clusters, and a random sample."
        )
    if content.places and content.on_map is not None:
        said.append(_about_map(content, content.on_map))
    elif content.places and len(content.sample) < n:
        said.append(f"The map shows {len(content.sample):,} of {n:,} images, sampled at random.")
    if n > LISTED:
        said.append(f"Only {LISTED:,} images are listed by name; sizes, purities and closest images include all.")
    return said


def _about_map(content: Content, on_map: Sequence[str]) -> str:
    """A sentence about a map of some classes."""
    labels = content.labels or []
    count, total = len(on_map), len({*labels} - {""})
    members = sum(label in {*on_map} for label in labels)
    of = f"{count:,} of {total:,} classes ({enumerate_names(list(on_map))})"
    if len(content.sample) == members:
        return f"The map shows all {members:,} images of {of}."
    return f"The map shows {len(content.sample):,} of the {members:,} images of {of}, sampled at random."


def _command(run: Run) -> str:
    """The command that reproduces the run; empty if it was trained from Python."""
    about, asked, recipe = run.config["data"], run.config["asked"], run.config["recipe"]
    if (
        run.imported
        or about["own_encoder"]
        or about["own_views"]
        or about.get("own_system")
        or not (about["source"] == "builtin" or "/" in about["source"])
    ):
        return ""
    options = SYSTEMS[asked["method"]].options
    usual = {**vars(Settings()), **vars(options()), **read_recipe(recipe)}
    words = [
        f"--{name.replace('_', '-')} {shlex.quote(_option(value))}"
        for name, value in asked.items()
        if name in usual and value != usual[name]
    ]
    first = shlex.join(["protonce", "train", about["source"], "--recipe", recipe])
    return " ".join([first, *words, "--out RUN"])


def _evaluate_command(content: Content) -> str:
    """A command that evaluates the run."""
    command = f"{_command_on(content.run, 'evaluate')} knn"
    return command if content.labels and "" not in content.labels else f"{command} --train LABELLED"


def _command_on(run: Run, command: str) -> str:
    """The beginning of a command for the run, to be pasted in any folder."""
    return shlex.join(["protonce", command, str(run.path.resolve())])


def _option(value: object) -> str:
    """A setting in the syntax of the command line."""
    return ",".join(map(str, value)) or "[]" if isinstance(value, list) else str(value)


def _map(content: Content) -> Any:
    """Figure of the map, coloured by class, or by the coarsest prototypes if there are no labels."""
    coarsest = content.hierarchy[0]
    names, groups = classes_of(content.labels)
    names = [shorten(name, LEGEND) for name in names]
    if groups is None:
        names, groups = [f"cluster {i}" for i in range(len(coarsest.size))], coarsest.assignment
    return drawing.draw_map(content.places, groups[content.sample], names)


def _write_figures(content: Content, curves: Sequence[Chart], folder: Path) -> None:
    for chart in curves:
        drawing.save(drawing.draw_chart(chart), folder, chart.name)
    if content.places:
        drawing.save(_map(content), folder, "map")
    if content.source is not None and content.source.sizes is not None and content.hierarchy[0].distance is not None:
        drawing.save(drawing.draw_clusters(content.source, content.hierarchy, CLOSEST), folder, "clusters")
