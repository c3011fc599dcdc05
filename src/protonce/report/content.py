"""Collect the content of a report from the run folder and the images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from protonce.data.sources import Data, Source
from protonce.errors import UserError
from protonce.label.findings import COMPARED, Findings, look_through
from protonce.label.suggested import kept_suggestions
from protonce.label.suggestion import suggest
from protonce.progress import Steps
from protonce.report import scatter
from protonce.report.hierarchy import Floats, Ints, Level, levels
from protonce.report.map_classes import choose_classes, sample_of
from protonce.report.thumbnails import by_cluster, choose
from protonce.run import Run

ODD = 60  # number of outliers and of groups of look-alikes on the page
SUGGESTED = 20  # images to label first, unless `protonce suggest` has named others


@dataclass(frozen=True)
class Content:
    """Content of a report, before it is rendered."""

    run: Run
    names: list[str]
    labels: list[str] | None
    missing: str  # why parts of the page are missing; empty: none are
    source: Source | None
    hierarchy: list[Level]
    against: Run | None  # the run to compare with
    odd: Findings | None  # look-alikes and outliers; None: not known
    suggested: list[int]  # images to label first
    on_map: list[str] | None  # the classes that the map is restricted to; None: all images may be on it
    sample: Ints  # indices of the images on the map
    places: dict[str, Floats]  # their coordinates by run; empty: there is no map
    pictured: Ints  # indices of the images with a thumbnail, in the order of the sheets


def gather(
    run: Run, data: Data | None, against: Run | None, classes: int | Sequence[str] | None, steps: Steps
) -> Content:
    """Compute features, clusters and map of a run; the slow part."""
    if not run.metrics and not run.imported:
        raise UserError(f"{run.path} has no finished epoch yet; continue it with --resume")
    for finished in [r for r in (run, against) if r is not None and (r is against or r.finished)]:
        finished.check_encoders()  # below, an error only means that there are no images
    names, labels = run.images
    n = len(names)
    on_map = None if classes is None else choose_classes(classes, labels, str(run.path))
    sample = sample_of(n, labels, on_map, scatter.POINTS)
    source = shown = embeddings = backbone = None
    missing = "" if run.finished else "the run is not finished; continue it with --resume"
    try:
        source = run.source(data)
        shown = source if len(sample) == n else source.subset(sample)  # on the map
        if run.finished:
            embeddings, backbone = _features(run, source, shown, steps)
    except UserError as error:
        if data is not None:
            raise
        missing = str(error)
    hierarchy = levels(run, embeddings)
    odd: Findings | None = None
    suggested: list[int] = []
    places: dict[str, Floats] = {}
    if shown is not None and embeddings is not None and backbone is not None:
        assert source is not None
        if source.sizes is not None and n <= COMPARED:
            odd = look_through(run, source, embeddings, steps)
        copies = odd.copies() if odd else []
        suggested = kept_suggestions(run) or suggest(embeddings, SUGGESTED, [], "typiclust", run.settings.seed, copies)
        maps = {
            name: backbone if r is run else r.features(shown, "backbone", steps=steps)[0]
            for name, r in titled(run, against).items()
        }
        with steps.doing(f"map of {len(sample):,} images" + (", for two runs" if against else "")):
            found = {name: scatter.tsne(features) for name, features in maps.items()}
        places = {name: xy for name, xy in found.items() if xy is not None}
        missing = (
            ""
            if len(places) == len(found)
            else "the encoder maps all images to the same features, or there are fewer than five"
        )
    pictured = np.empty(0, dtype=np.int64)
    if source is not None and source.sizes is not None:
        first = [*suggested, *sample, *shown_odd(odd)]
        pictured = by_cluster(choose(n, hierarchy, np.array(first, dtype=np.int64)), hierarchy)
    return Content(
        run, names, labels, missing, source, hierarchy, against, odd, suggested, on_map, sample, places, pictured
    )


def shown_odd(odd: Findings | None) -> list[int]:
    """The images of the groups and outliers that the page shows."""
    if odd is None:
        return []
    return [*(i for images in odd.groups[:ODD] for i in images), *odd.outliers.images[:ODD].tolist()]


def _features(run: Run, source: Source, shown: Source, steps: Steps) -> tuple[Tensor, Tensor]:
    """Momentum embeddings of all images, (n, dim), and backbone features of those on the map, (s, D)."""
    if shown is source:
        embeddings, backbone = run.features(source, "momentum", "backbone", steps=steps)  # in one pass
        return embeddings, backbone
    # Backbone features of all images would be large: 10 GB for ImageNet.
    return run.features(source, "momentum", steps=steps)[0], run.features(shown, "backbone", steps=steps)[0]


def titled(run: Run, against: Run | None) -> dict[str, Run]:
    """The runs by title; the one to compare with comes first, on the left as in the paper."""
    if against is None:
        return {title(run): run}
    if title(run) != title(against):
        return {title(against): against, title(run): run}
    return {f"{title(r)}, {r.path.resolve().parent}": r for r in (against, run)}


def title(run: Run) -> str:
    """Title of a run: its system and folder."""
    return f"{run.title} ({run.path.resolve().name})"
