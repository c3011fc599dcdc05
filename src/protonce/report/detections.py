"""The page of a detection or segmentation: scores, curves of each class, and detections drawn on test images."""

import base64
import io
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from protonce import manifest
from protonce.data.masks import pixels
from protonce.report import drawing
from protonce.report.charts import Chart, Line
from protonce.results import from_paper, scores
from protonce.run import Run

SIDE = 480  # pixels of an image on the page
QUALITY = 80
TINT = 0.45  # of a mask over the image
COLOURS = {"right": (0, 158, 115), "wrong": (213, 94, 0), "ignored": (130, 130, 130)}
CLASSES_IN_A_CHART = 6


def write_detections(run: Run, stem: str) -> Path:
    """Write RUN/evaluations/STEM.html from STEM.json and the test images.

    Args:
        run: with the evaluation.
        stem: its file name without suffix.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    result = run.evaluations[stem]
    details = result["details"]
    folder = resources.files("protonce.report") / "assets"
    loader = PackageLoader("protonce", "report/assets")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    found = scores(result)
    page = environment.get_template("detections.html").render(
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        result=result,
        run=run.path.name,
        scores=found,
        paper=from_paper(found),
        classes=class_rows(details["by_class"]),
        measures=list(details["by_class"]),
        curves=[drawing.svg(drawing.draw_chart(chart)) for chart in curve_charts(details["curves"])],
        images=[picture for one in details["shown"] if (picture := _picture(one)) is not None],
        faults=[fault for part in ("train", "test") for fault in result["data"][part].get("faults", [])],
    )
    manifest.write(run.path, f"evaluations/{stem}.html", page)
    return run.path / "evaluations" / f"{stem}.html"


def class_rows(by_class: Mapping[str, Mapping[str, float]]) -> list[tuple[str, ...]]:
    """A row for each class, with a column for each measure."""
    names = sorted({name for values in by_class.values() for name in values})
    return [
        (name, *(f"{values[name]:.3f}" if name in values else "" for values in by_class.values())) for name in names
    ]


def curve_charts(curves: Mapping[str, Sequence[Sequence[float]]]) -> list[Chart]:
    """Precision over recall, a few classes in each chart."""
    names = sorted(curves)
    charts = []
    for start in range(0, len(names), CLASSES_IN_A_CHART):
        some = names[start : start + CLASSES_IN_A_CHART]
        lines = [Line(name, recall, precision) for name in some for recall, precision in [curves[name]] if recall]
        title = "Precision and recall" if len(names) <= CLASSES_IN_A_CHART else f"{some[0]} to {some[-1]}"
        charts.append(Chart(f"precision-{start}", title, "", "recall", "precision", lines))
    return [chart for chart in charts if chart.lines]


def _picture(shown: Mapping[str, Any]) -> dict[str, Any] | None:
    """An image of the page with its boxes in shares of its size; None if its file is not there any more."""
    try:
        with Image.open(shown["file"]) as file:
            image = file.convert("RGB")
    except OSError:
        return None
    width, height = image.size
    for detection in shown["detections"]:
        if "mask" in detection:
            image = _tinted(image, pixels(detection["mask"], width, height), COLOURS[detection["verdict"]])
    buffer = io.BytesIO()
    ImageOps.contain(image, (SIDE, SIDE)).save(buffer, "WEBP", quality=QUALITY)
    boxes = [
        {**found, "left": x0, "top": y0, "wide": x1 - x0, "high": y1 - y0}
        for found in (*({"verdict": "missed", **missed} for missed in shown["missed"]), *shown["detections"])
        for x0, y0, x1, y1 in [found["box"]]
    ]
    counts = {kind: sum(box["verdict"] == kind for box in boxes) for kind in ("right", "wrong", "missed")}
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"name": shown["name"], "width": width, "height": height, "data": data, "boxes": boxes, **counts}


def _tinted(image: Image.Image, mask: Any, colour: tuple[int, int, int]) -> Image.Image:
    """The image with the colour over the mask (h, w)."""
    values = np.asarray(image).astype(np.float32)
    values[mask] = (1 - TINT) * values[mask] + TINT * np.array(colour, dtype=np.float32)
    return Image.fromarray(values.astype(np.uint8))
