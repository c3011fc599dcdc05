"""Data of the charts of a run; `drawing.py` draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonce.agreement import entropy, expected_mutual_information, mutual_information
from protonce.evaluate.clustering import over_training
from protonce.evaluate.information import KEEP, features_over_training
from protonce.report.evaluations import Evaluation
from protonce.report.hierarchy import Ints, Level
from protonce.run import Run

Point = tuple[int, float, float | None]  # k, mean and standard deviation over draws
MAX_EPOCHS = 40  # epochs at which clusters are compared with labels
MAX_IMAGES = 2_000  # whose kept features are compared with labels at each of them, in less than a second


@dataclass(frozen=True)
class Line:
    """A curve: y over x, with an optional band from low to high."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    of: str = ""  # name of the line that this is a reference for: dashed, in the same colour
    steps: bool = False  # draw as the outline of a histogram


@dataclass(frozen=True)
class Chart:
    """A figure of curves."""

    name: str  # of its file
    title: str
    caption: str
    x: str
    y: str
    lines: list[Line]
    log_x: bool = False


def training(run: Run, labels: Sequence[str] | None) -> list[Chart]:
    """Charts over the epochs of a run; charts without data are omitted."""
    records = run.metrics
    names = [f"k = {k:,}" for k in run.settings.clusters]
    charts = [
        _losses(records, run.terms),
        _bound(records, run.terms),
        _accuracies(records, run.terms),
        _learning_rate(records),
        _concentration(records, names),
    ]
    charts += [_agreement(records, names), _rank(records, run.settings.dim), _scores(records)]
    if labels is not None and records:
        charts.append(_labels(run, labels, names))
    return [chart for chart in charts if chart.lines]


def _series(name: str, records: Sequence[Mapping[str, Any]], key: str, **more: Any) -> list[Line]:
    """A line with one number per epoch, over the epochs that have it."""
    have = [r for r in records if key in r]
    return [Line(name, [r["epoch"] for r in have], [r[key] for r in have], **more)] if have else []


def _by_level(names: Sequence[str], records: Sequence[Mapping[str, Any]], key: str) -> list[Line]:
    """A line per granularity with one number per epoch."""
    have = [r for r in records if r.get(key)]
    return [Line(name, [r["epoch"] for r in have], [r[key][m] for r in have]) for m, name in enumerate(names) if have]


def _losses(records: Sequence[Mapping[str, Any]], terms: Sequence[str]) -> Chart:
    found = [term for term in terms if any(term in r for r in records)]
    lines = _series("weighted sum of the terms" if found else "loss", records, "loss") if len(found) != 1 else []
    for term in found:
        lines += _series(term, records, term)
        lines += _series(f"{term}, chance level", [r for r in records if term in r], f"{term}_chance", of=term)
    caption = "Loss and its terms; the sum jumps when a term is added."
    if any(line.of for line in lines):
        caption += " Dashed: chance level, the loss of an untrained or collapsed encoder."
    return Chart("loss", "Loss", caption, "epoch", "loss", lines)


def _bound(records: Sequence[Mapping[str, Any]], terms: Sequence[str]) -> Chart:
    """Eq. 10 before and after the M-steps of each epoch: the bound of the convergence proof (appendix G)."""
    lines = _series("after the E-step", records, "bound_before") + _series("after the M-steps", records, "bound_after")
    caption = (
        "Eq. 10 over all prototypes, for momentum features: minus the bound on the likelihood, up to constants. The "
        "proof promises that after an E-step, M-steps that lower it for fixed prototypes, from the first curve to the "
        "second, raise the bound. It may still rise: every epoch has a new k-means, M-steps see minibatches, and the "
        "momentum encoder lags behind."
    )
    if "prototype" not in terms:
        caption += " This system has no prototype term to lower it."
    elif any("prototype" not in record for record in records):
        caption += " The warm-up has no prototype term to lower it."
    return Chart("bound", "Bound of the convergence proof", caption, "epoch", "eq. 10", lines)


def _accuracies(records: Sequence[Mapping[str, Any]], terms: Sequence[str]) -> Chart:
    lines = [line for term in terms for line in _series(term, records, f"{term}_accuracy")]
    caption = "Accuracy of each loss term on training images."
    return Chart("accuracy", "Accuracy", caption, "epoch", "share", lines)


def _learning_rate(records: Sequence[Mapping[str, Any]]) -> Chart:
    caption = "Learning rate at the start of each epoch."
    return Chart("learning-rate", "Learning rate", caption, "epoch", "lr", _series("lr", records, "lr"))


def _concentration(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Chart:
    lines = []
    have = [r for r in records if r.get("phi")]
    for m, name in enumerate(names):
        if have:
            low, middle, high = ([r["phi"][m][i] for r in have] for i in (1, 2, 3))
            lines.append(Line(name, [r["epoch"] for r in have], middle, low, high))
    caption = "Median and 10th to 90th percentile of φ over the prototypes (eq. 12); a small φ means a tight cluster."
    return Chart("concentration", "Concentration φ", caption, "epoch", "φ", lines)


def _agreement(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Chart:
    caption = "NMI with the clusters of the previous recorded epoch; 1 means identical clusters."
    lines = _by_level(names, records, "agreement")
    return Chart("stability", "Clusters from epoch to epoch", caption, "epoch", "NMI", lines)


def _rank(records: Sequence[Mapping[str, Any]], dim: int) -> Chart:
    caption = f"Effective number of dimensions that the embeddings use, of {dim}; 1 means collapse."
    lines = _series("effective rank", records, "effective_rank")
    return Chart("effective-rank", "Effective rank", caption, "epoch", "rank", lines)


def _scores(records: Sequence[Mapping[str, Any]]) -> Chart:
    scored = [{"epoch": r["epoch"], **r["scores"]} for r in records if "scores" in r]
    names = dict.fromkeys(name for r in scored for name in r if name != "epoch")
    caption = "Scores recorded during training (`--watch`, callbacks); for watching, not for reporting."
    lines = [line for name in names for line in _series(name, scored, name)]
    return Chart("scores", "Scores while training", caption, "epoch", "", lines)


def _labels(run: Run, labels: Sequence[str], names: Sequence[str]) -> Chart:
    """AMI between clusters and labels over epochs, for each granularity (figure in the appendix)."""
    chosen = _epochs(run)
    lines = [Line(name, chosen, curve) for name, curve in zip(names, over_training(run, labels, chosen), strict=True)]
    used = "are" if run.uses_labels else "are not"
    caption = f"AMI between clusters and labels, which {used} used in training (figure in the paper's appendix)."
    return Chart("ami", "Clusters and labels", caption, "epoch", "AMI", lines)


def _epochs(run: Run) -> list[int]:
    """At most MAX_EPOCHS of the recorded epochs, evenly spread."""
    epochs = np.array(run.recorded_epochs, dtype=np.int64)
    spread = np.linspace(0, len(epochs) - 1, min(len(epochs), MAX_EPOCHS)).round().astype(int)
    chosen: list[int] = epochs[np.unique(spread)].tolist()
    return chosen


def information(runs: Mapping[str, Run]) -> list[Chart]:
    """Information between labels and prototypes or kept features over the epochs (fig. 3b).

    A line per run and granularity, and one for the features of a run that has kept some. A line of another run is
    dashed, in the colour of the last run's line with the same number of clusters, or of its features.

    Args:
        runs: by title, on the same images. Without labels or recorded epochs of the last one there is no chart.
    """
    known = {title: (run, run.images[1] or []) for title, run in runs.items() if run.recorded_epochs and run.images[1]}
    main = list(runs)[-1]
    if main not in known:
        return []
    lines: list[Line] = []
    for title in reversed(known):
        for what, epochs, y in _curves(*known[title]):
            name, of = (f"{what}, {which}" if len(known) > 1 else what for which in (title, main))
            dashed = title != main and any(line.name == of for line in lines)
            lines.append(Line(name, epochs, y, of=of if dashed else ""))
    run, labels = known[main]
    chance = over_training(run, labels, _epochs(run)[-1:], expected_mutual_information)
    by_chance = ", ".join(f"{y:.2f} for k = {k:,}" for k, (y,) in zip(run.settings.clusters, chance, strict=True))
    counts = np.unique([label for label in labels if label], return_counts=True)[1]
    caption = (
        "Exact mutual information between the labels and the assigned prototypes, in nats (fig. 3b); the labels have "
        f"{entropy(counts):.2f}. More clusters have more of it by chance: with shuffled labels {by_chance}."
    )
    kept = [one for one, _ in known.values() if one.kept_epochs]
    if kept:
        images = min(max(one.settings.keep_features for one in kept), MAX_IMAGES, len(labels))
        caption += f" Features: estimated from at most {images:,} kept images, too small in many dimensions."
    if len(kept) < len(known):
        caption += f" Features of earlier epochs need to be kept: {KEEP}."
    if any(line.of for line in lines):
        caption += f" Dashed: {', '.join(title for title in known if title != main)}."
    return [Chart("information", "Information about the labels", caption, "epoch", "nats", lines)]


def _curves(run: Run, labels: Sequence[str]) -> list[tuple[str, list[int], list[float]]]:
    """Name, epochs and information of the kept features, if there are any, and of the prototypes."""
    epochs = _epochs(run)
    found = []
    if run.kept_epochs:
        estimate = features_over_training(run, labels, epochs, most=MAX_IMAGES)
        found.append(("features", epochs, estimate))
    curves = over_training(run, labels, epochs, mutual_information)
    return found + [(f"k = {k:,}", epochs, y) for k, y in zip(run.settings.clusters, curves, strict=True)]


def sizes(runs: Mapping[str, Sequence[Level]]) -> list[Chart]:
    """Cluster sizes of each granularity of the last run, and of other runs with as many clusters (fig. 3a)."""
    charts = []
    for m, level in enumerate(list(runs.values())[-1]):
        k = len(level.size)
        alike = {title: found.size for title, one in runs.items() for found in one if len(found.size) == k}
        edges = _edges(list(alike.values()))
        lines = [
            Line(title, edges.tolist(), [*np.histogram(size, edges)[0].tolist(), 0], steps=True)
            for title, size in alike.items()
        ]
        spread = ", ".join(f"{np.std(size):.1f} for {title}" for title, size in alike.items())
        caption = (
            f"Distribution of the number of images in each of {k:,} clusters (fig. 3a); standard deviation: {spread}."
        )
        charts.append(Chart(f"sizes-{m}", f"Cluster sizes, k = {k:,}", caption, "images", "clusters", lines))
    return charts


def _edges(sizes: Sequence[Ints]) -> NDArray[np.float64]:
    """Edges of integer bins; more bins for more clusters."""
    low, high = min(int(s.min()) for s in sizes), max(int(s.max()) for s in sizes)
    bins = min(2 * len(sizes[0]) ** 0.5, 40)
    width = max(round((high - low) / bins), 1)
    return np.arange(low, high + 2 * width, width) - 0.5


def evaluations(found: Sequence[Evaluation]) -> list[Chart]:
    """A curve over k for each evaluation with metrics named METRIC@K, such as low-shot classification, and each run."""
    charts = []
    for evaluation in found:
        curves: dict[tuple[str, str], list[Point]] = {}
        for row in evaluation.rows:
            what, _, k = row.metric.rpartition("@")
            if what and k.isdecimal():
                for title, score in row.scores.items():
                    if score is not None and score.mean is not None:
                        curves.setdefault((title, what), []).append((int(k), score.mean, score.std))
        several = len({title for title, _ in curves}) > 1
        lines = [
            _over_shots(f"{what}, {title}" if several else what, points)
            for (title, what), points in curves.items()
            if len(points) > 1
        ]
        if lines:
            name = evaluation.name
            spread = any(line.low is not None for line in lines)
            caption = "Mean ± one standard deviation over draws." if spread else "A single draw."
            charts.append(
                Chart(f"evaluation-{name}", name, caption, "labelled images per class", "", lines, log_x=True)
            )
    return charts


def _over_shots(name: str, points: Sequence[Point]) -> Line:
    """A curve over k; a single draw has no band."""
    found = sorted(points, key=lambda point: point[0])
    ks, mean = [k for k, _, _ in found], [m for _, m, _ in found]
    bands = [(m - std, m + std) for _, m, std in found if std is not None]
    if len(bands) < len(found):
        return Line(name, ks, mean)
    return Line(name, ks, mean, [low for low, _ in bands], [high for _, high in bands])
