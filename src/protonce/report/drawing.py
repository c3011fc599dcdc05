"""Draw charts, the map and clusters with matplotlib: SVG for the page, PNG and PDF for publication."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from protonce.data.sources import Source
from protonce.files import write_whole
from protonce.report.charts import Chart
from protonce.report.hierarchy import Floats, Ints, Level
from protonce.report.thumbnails import thumbnail
from protonce.shortening import shorten

# The colour-blind safe palette of Okabe and Ito, without yellow, which is too pale for lines.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "h", "*")  # the same shapes as in scatter.MARKERS
LARGE_DOT = 30  # area in square points of the largest dots of a map, and of all in its legend
MOST_INSIDE = 4  # lines in a legend among the curves; a longer one stands below
WIDEST, WIDEST_OF_TWO = 64, 28  # characters of a name in the legend of a chart, in one or two columns
INK = "#010101"  # text and axes; replaced by the page's text colour, so that figures suit dark pages
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "protonce",  # the same figure has the same bytes
    "pdf.fonttype": 42,
    "text.parse_math": False,  # `$` in a name is not a formula
    "savefig.dpi": 200,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def draw_chart(chart: Chart) -> Figure:
    """Draw a chart."""
    with rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.1), layout="constrained")
        axes = figure.add_subplot()
        solid = [line.name for line in chart.lines if not line.of]
        handles = []
        for line in chart.lines:
            of = solid.index(line.of or line.name)
            colour = COLOURS[of % len(COLOURS)]
            style: dict[str, Any] = {"color": colour, "linestyle": "--" if line.of else "-"}
            if line.steps:
                x, y = [line.x[0], *line.x], [0, *line.y]  # the outline begins and ends at zero
                handles += axes.plot(x, y, drawstyle="steps-post", **style)
                axes.fill_between(x, y, step="post", color=colour, alpha=0.15, linewidth=0)
            else:
                few = len(line.x) <= 12 and not line.of
                handles += axes.plot(
                    line.x, line.y, marker=MARKERS[of % len(MARKERS)] if few else "", markersize=4, **style
                )
            if line.low is not None and line.high is not None:
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
        axes.set(xlabel=chart.x, ylabel=chart.y, title=_text(chart.title))
        if chart.log_x:
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted({x for line in chart.lines for x in line.x}))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        elif chart.x in ("epoch", "images"):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if chart.y == "clusters":
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        names = [_text(shorten(line.name, WIDEST)) for line in chart.lines]
        if len(names) > MOST_INSIDE:
            columns = 2 if max(map(len, names)) <= WIDEST_OF_TWO else 1
            figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
        elif len(names) > 1:
            axes.legend(handles, names, frameon=False, fontsize=8)
        return figure


def draw_map(places: Mapping[str, Floats], groups: Ints, titles: Sequence[str]) -> Figure:
    """Draw the map with one plot per run, coloured by group; the largest groups are named, the others grey.

    Args:
        places: (s, 2), by the title of the plot.
        groups: group of each image, (s,).
        titles: names of the groups.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(5.2 * len(places), 5.2), layout="constrained")
        sizes = np.bincount(groups, minlength=len(titles))
        shown = np.argsort(-sizes, kind="stable")[: min(len(COLOURS) * len(MARKERS), np.count_nonzero(sizes))]
        handles: dict[int, Any] = {}
        area = min(max(5_000 / len(groups), 6), LARGE_DOT)  # of a dot: fewer dots are larger
        for i, (title, xy) in enumerate(places.items()):
            axes = figure.add_subplot(1, len(places), i + 1, aspect="equal")
            rest = ~np.isin(groups, shown)
            axes.scatter(xy[rest, 0], xy[rest, 1], s=area, color="0.7", linewidths=0)
            for j, group in enumerate(shown):
                which = groups == group
                style: Any = {"color": COLOURS[j % len(COLOURS)], "marker": MARKERS[j // len(COLOURS)]}
                dots = axes.scatter(xy[which, 0], xy[which, 1], s=area, linewidths=0, **style)
                handles[j] = dots
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.set_title(_text(title), wrap=True)
        names = [_text(titles[group]) for group in shown]
        legible = {"markerscale": (LARGE_DOT / area) ** 0.5, "fontsize": 7, "frameon": False}
        figure.legend(list(handles.values()), names, loc="outside lower center", ncols=6, **legible)
        return figure


def draw_clusters(source: Source, hierarchy: Sequence[Level], top: int, rows: int = 6, side: int = 64) -> Figure:
    """Draw some clusters, as in the paper's last figure: the images closest to a fine prototype with a green frame, and
    random images of the coarser cluster around it with an orange frame.
    """
    fine = hierarchy[-1]
    coarse = hierarchy[max(len(hierarchy) - 2, 0)]
    order, start = fine.members()
    large = np.flatnonzero(fine.size >= min(top, fine.size.max()))
    rng = np.random.default_rng(0)
    with rc_context(STYLE):
        chosen = np.sort(rng.permutation(large)[:rows])
        figure = Figure(figsize=(2 * top * 0.75, len(chosen) * 0.78), layout="constrained")
        grid = figure.subplots(len(chosen), 2 * top, squeeze=False)
        for axes in grid.flat:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for row, which in zip(grid, chosen, strict=True):
            closest = order[start[which] : start[which + 1]][:top]
            parent = fine.parent[which] if fine.parent is not None else which
            around = np.setdiff1d(np.flatnonzero(coarse.assignment == parent), closest)
            others = rng.permutation(around)[:top]
            for first, images, colour in ((0, closest, "#009e73"), (top, others, "#e69f00")):
                for axes, i in zip(row[first:], images, strict=False):
                    axes.imshow(thumbnail(source, int(i), side))
                    axes.spines[:].set(visible=True, color=colour, linewidth=2)
        return figure


def _text(text: str) -> str:
    """A name with everything replaced that is not UTF-8, which matplotlib cannot draw."""
    return text.encode("utf-8", "replace").decode()


def svg(figure: Figure) -> str:
    """A figure as an SVG element for an HTML page, with text in the page's colour."""
    buffer = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    # The page sets the width of a figure; the viewBox keeps its aspect ratio.
    head, rest = text.split(">", 1)
    return re.sub(r' (width|height)="[^"]*"', "", head) + ">" + rest


def png(figure: Figure, dpi: int) -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as NAME.png and NAME.pdf."""
    for suffix in ("png", "pdf"):
        buffer = io.BytesIO()
        with rc_context(STYLE):
            figure.savefig(buffer, format=suffix, metadata={"CreationDate": None} if suffix == "pdf" else None)
        write_whole(folder / f"{name}.{suffix}", buffer.getvalue())
