"""The interactive map: t-SNE of the representation (the paper's t-SNE figure)."""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from protonce.report.hierarchy import Floats

POINTS = 2_500  # maximum number of points on the map
PERPLEXITY = 30.0
FEW = 1_000  # points for which threads wait for each other longer than they work
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "hex", "star")


def tsne(features: Tensor) -> Floats | None:
    """t-SNE of L2-normalised features (s, D); (s, 2).

    None if there are fewer than five images, or if all features are equal.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    s = len(features)
    points = F.normalize(features.double(), dim=1).numpy()
    if s < 5 or points.std(axis=0).max() < 1e-6:
        return None
    with threadpool_limits(1 if s < FEW else None):
        points = PCA(min(50, *points.shape), random_state=0).fit_transform(points)
        places: Floats = TSNE(perplexity=min(PERPLEXITY, (s - 1) / 3), random_state=0).fit_transform(points)
    return places


def figures(places: Mapping[str, Floats]) -> dict[str, Any]:
    """Bokeh's JSON of the map: a plot per run with shared points, so that hovering highlights an image in all plots.

    Args:
        places: coordinates of the same images, (s, 2), by title of the plot.
    """
    from bokeh.embed import json_item
    from bokeh.layouts import row
    from bokeh.models import ColumnDataSource, HoverTool
    from bokeh.plotting import figure

    s = len(next(iter(places.values())))
    columns: dict[str, Any] = {"color": ["gray"] * s, "marker": ["circle"] * s, "alpha": [0.8] * s}
    for j, xy in enumerate(places.values()):
        columns |= {f"x{j}": xy[:, 0], f"y{j}": xy[:, 1]}
    points = ColumnDataSource(columns, name="points")
    plots = []
    for j, title in enumerate(places):
        tools = "pan,box_select,lasso_select,wheel_zoom,zoom_in,zoom_out,reset,tap"
        plot: Any = figure(
            title=title if len(places) > 1 else "",
            tools=tools,
            active_scroll="wheel_zoom",
            match_aspect=True,
            sizing_mode="stretch_width",
            height=560,
            min_width=300,
            toolbar_location="above",
        )
        plot.toolbar.logo = None
        dots = plot.scatter(
            f"x{j}", f"y{j}", source=points, color="color", marker="marker", alpha="alpha", size=7, line_color=None
        )
        dots.nonselection_glyph = None
        dots.hover_glyph = dots.glyph.clone(size=16, line_color="black", fill_alpha=1.0)
        plot.add_tools(HoverTool(renderers=[dots], tooltips=None))
        plot.axis.visible = plot.grid.visible = False
        plot.background_fill_alpha = plot.border_fill_alpha = plot.outline_line_alpha = 0
        plot.title.text_color = "gray"
        plots.append(plot)
    # Side by side if there is room, otherwise below each other.
    beside = row(*plots, sizing_mode="stretch_width", styles={"flex-wrap": "wrap"})
    return dict(json_item(beside))
