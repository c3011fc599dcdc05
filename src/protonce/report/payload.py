"""Data for the script of the page: names, clusters and coordinates, encoded so that they cannot be read as HTML."""

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from protonce.label.findings import Findings
from protonce.label.lookalikes import Pair
from protonce.report import drawing, scatter
from protonce.report.content import ODD, Content, shown_odd
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
    must = np.unique([*content.pictured, *content.sample, *content.suggested, *shown_odd(content.odd)]).astype(np.int64)
    listed = np.arange(n) if n <= LISTED else np.union1d(must, sample_indices(n, max(LISTED - len(must), 0)))
    place = np.full(n, -1, dtype=np.int64)
    place[listed] = np.arange(len(listed))
    classes, codes = classes_of(content.labels)
    return {
        "key": _key(content),
        "total": n,
        "names": [shorten(content.names[i], NAME) for i in listed],
        "long": {int(place[i]): content.names[i] for i in listed if len(content.names[i]) > NAME},
        "files": _files(content, listed),
        "classes": [shorten(name) for name in classes],
        "labels": None if codes is None else codes[listed].tolist(),
        "levels": [_level(level, listed, content.labels, codes) for level in content.hierarchy],
        "outliers": _outliers(content.odd, place),
        "alike": _alike(content.odd, place),
        "suggested": place[content.suggested].tolist() if content.suggested else [],
        "pictured": place[content.pictured].tolist(),
        "sheet": {"columns": COLUMNS, "rows": ROWS},
        "closest": CLOSEST,
        "colours": drawing.COLOURS,
        "map": _map_data(content, place) if content.places else None,
    }


def _key(content: Content) -> str:
    """Identifies images and clusters: under it a browser keeps what a person says about them."""
    found = hashlib.sha256(content.run.config["data"]["fingerprint"].encode())  # of the names and sizes of the images
    for level in content.hierarchy:
        found.update(level.assignment.astype(np.int64).tobytes())
    return found.hexdigest()[:16]


def _files(content: Content, listed: Ints) -> str | list[str | None] | None:
    """Addresses of the original files relative to the page: of their folder, or of each; None: they are not files."""
    source = content.source
    if source is None or source.files is None or not os.path.lexists(source.files[0]):  # a member of an archive
        return None
    page = content.run.path.resolve()
    roots = {file.removesuffix(name) for file, name in zip(source.files, source.names, strict=True)}
    if len(roots) == 1 and (root := roots.pop()).endswith(os.sep):
        return relative_address(root, page)
    return [relative_address(source.files[i], page) for i in listed]


def relative_address(path: str, page: Path) -> str:
    """A path as an address relative to the folder of a page, so that both can be moved together."""
    return quote(os.fsencode(os.path.relpath(Path(path).resolve(), page)).replace(os.sep.encode(), b"/"))


def _outliers(odd: Findings | None, place: Ints) -> dict[str, Any] | None:
    if odd is None:
        return None
    found = zip(odd.outliers.images[:ODD].tolist(), odd.outliers.distances[:ODD].tolist(), strict=True)
    images = [[int(place[i]), _short(distance)] for i, distance in found]
    return {"images": images, "threshold": _short(odd.outliers.threshold)}


def _alike(odd: Findings | None, place: Ints) -> dict[str, Any] | None:
    """Groups of look-alikes, each with its least certain kind and correlation."""
    if odd is None:
        return None
    pairs: dict[int, list[Pair]] = {}
    for pair in odd.pairs:
        pairs.setdefault(pair.first, []).append(pair)
    groups = []
    for images in odd.groups[:ODD]:
        worst = min((pair for i in images for pair in pairs.get(i, [])), key=lambda pair: pair.correlation)
        groups.append([place[images].tolist(), worst.kind, _short(worst.correlation)])
    t = odd.thresholds
    return {
        "groups": groups,
        "total": len(odd.groups),
        "correlation": round(t.correlation, 2),
        "copies": _short(t.copies),
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
        "distance": None if level.distance is None else [round(d, 3) for d in level.distance[listed].tolist()],
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
