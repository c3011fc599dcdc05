"""Data for the script of the page: names, clusters and coordinates, encoded so that they cannot be read as HTML."""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from protonce.report import drawing, scatter
from protonce.report.content import Content
from protonce.report.hierarchy import Ints, Level, classes_of, cluster_purity
from protonce.report.thumbnails import COLUMNS, ROWS, sample_indices
from protonce.shortening import shorten

LISTED = 100_000  # images listed by name on the page, at most
NAME = 260  # characters of a name on the page: a file name as long as file systems allow is shown whole
CLOSEST = 5  # images shown for a prototype, as in the paper's last figure


def packed(data: Mapping[str, Any]) -> str:
    """Compressed JSON as base64, which cannot contain HTML."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def payload(content: Content) -> dict[str, Any]:
    """Data for the script of the page. Images are numbered by their position among the listed images."""
    n = len(content.names)
    odd = [i for i, _ in content.outliers] + [i for pair in content.alike for i in pair[:2]]
    must = np.unique([*content.pictured, *content.sample, *odd]).astype(np.int64)
    listed = np.arange(n) if n <= LISTED else np.union1d(must, sample_indices(n, max(LISTED - len(must), 0)))
    place = np.full(n, -1, dtype=np.int64)
    place[listed] = np.arange(len(listed))
    classes, codes = classes_of(content.labels)
    return {
        "total": n,
        "names": [shorten(content.names[i], NAME) for i in listed],
        "classes": [shorten(name) for name in classes],
        "labels": None if codes is None else codes[listed].tolist(),
        "levels": [_level(level, listed, content.labels, codes) for level in content.hierarchy],
        "outliers": [[int(place[i]), _short(d)] for i, d in content.outliers],
        "alike": [[int(place[i]), int(place[j]), _short(d)] for i, j, d in content.alike],
        "pictured": place[content.pictured].tolist(),
        "sheet": {"columns": COLUMNS, "rows": ROWS},
        "closest": CLOSEST,
        "colours": drawing.COLOURS,
        "map": _map_data(content, place) if content.places else None,
    }


def _map_data(content: Content, place: Ints) -> dict[str, Any]:
    return {
        "images": place[content.sample].tolist(),
        "plots": scatter.figures(content.places),
        "markers": scatter.MARKERS,
    }


def _level(level: Level, listed: Ints, labels: Sequence[str] | None, codes: Ints | None) -> dict[str, Any]:
    ranks = level.ranks()
    found: dict[str, Any] = {
        "assignment": level.assignment[listed].tolist(),
        "size": level.size.tolist(),
        "parent": None if level.parent is None else level.parent.tolist(),
        "phi": None if level.concentration is None else [_short(v) for v in level.concentration.tolist()],
        "rank": None if ranks is None else ranks[listed].tolist(),
        "purity": None,
        "label": None,
        "labelled": None,
    }
    if codes is not None:
        share, label, labelled = cluster_purity(level.assignment, codes, np.asarray(labels) != "")
        found |= {"purity": [_short(v) for v in share.tolist()], "label": label.tolist(), "labelled": labelled.tolist()}
    return found


def _short(value: float) -> float | None:
    """Round to four digits; None for infinity and NaN, which JSON does not support."""
    return float(f"{value:.4g}") if np.isfinite(value) else None
