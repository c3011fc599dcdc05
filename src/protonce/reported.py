"""What the paper reports for a metric of an evaluation, and whether that was measured in the same way."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protonce.paper import TABLES, Row

HEADING = "ImageNet, from the paper"  # of scores whose data, k or protocol are not those of an evaluation
BASELINES = ("Random", "Supervised", "Supervised baseline", "Inst. Disc.", "LA", "DeepCluster")
SHOWN = (*BASELINES, "MoCo", "PCL", "MoCo v2", "PCL v2")  # the rows of the paper that are shown
_AMI = re.compile(r"ami(?: (?P<which>of the run's |\()k = (?P<k>\d+)\)?)?")


@dataclass(frozen=True)
class Dataset:
    """A labelled data set of the paper, recognised by how many classes, training and test images it has."""

    classes: int
    train: int
    test: int


DATASETS = {
    "ImageNet": Dataset(1000, 1_281_167, 50_000),
    "VOC07": Dataset(20, 5_011, 4_952),
    "Places205": Dataset(205, 2_448_873, 20_500),
    "VOC07+12": Dataset(20, 16_551, 4_952),
    "COCO": Dataset(80, 118_287, 5_000),
}
CLUSTERS = 25_000  # k of table 5
SHOTS = (1, 2, 4, 8, 16)  # k of table 1


@dataclass(frozen=True)
class Reference:
    """A column of a table to compare a metric with, and the protocol with which it was measured."""

    label: str
    column: str
    what: str  # the metric, the data, and k
    data: str  # one of DATASETS
    settings: dict[str, object] = field(default_factory=dict)  # of the evaluation; a tuple: any of these
    at: str = ""  # which of several columns of the same metric it is
    also: str = ""  # what the text says of it


@dataclass(frozen=True)
class Excerpt:
    """Columns of a table of the paper: the shown rows with their encoders."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: str


def _references() -> dict[tuple[str, str], Reference]:
    imagenet: dict[str, object] = {"views": "augmented", "drops": [0.6, 0.8], "epochs": 100, "lr": 10.0, "cells": 1}
    places = {**imagenet, "epochs": 40, "lr": 0.3, "cells": 2}
    svm: dict[str, object] = {"cost": (0.5, "benchmark")}  # of the published code, and of the benchmark it cites
    shots = {**svm, "classifier": "svm", "draws": 5}
    tuning: dict[str, object] = {"epochs": 20, "drops": [0.6, 0.8], "lr": 0.01, "batch_size": 256, "draws": 5}
    tuning["weight_decay"] = 0.0005
    linear, tuned = "top-1 of a linear classifier on", "top-5 on ImageNet after fine-tuning"
    ami = f"AMI of k-means, k = {CLUSTERS:,}, on ImageNet"
    below = "standard deviation below 0.006 over 5 runs"
    found = {
        ("knn", "momentum_accuracy"): Reference("tbl:knn", "accuracy", "kNN on ImageNet", "ImageNet", {"tau": 0.1}),
        ("clustering", "ami"): Reference("tbl:ami", "AMI", ami, "ImageNet", {"clusters": [CLUSTERS]}),
        ("linear", "top1"): Reference("tbl:linear", "ImageNet", f"{linear} ImageNet", "ImageNet", imagenet),
        ("linear", "top1 Places205"): Reference("tbl:linear", "Places205", f"{linear} Places205", "Places205", places),
        ("linear", "map"): Reference("tbl:linear", "VOC07", "mAP of SVMs on VOC07", "VOC07", svm),
        ("semisup", "top5@1%"): Reference(
            "tbl:semi_supervise", "1%", tuned, "ImageNet", {**tuning, "classifier_lr": 1.0}, "1 % of the labels", below
        ),
        ("semisup", "top5@10%"): Reference(
            "tbl:semi_supervise", "10%", tuned, "ImageNet", {**tuning, "classifier_lr": 0.1}, "10 % of the labels"
        ),
    }
    detector: dict[str, object] = {"epochs": 15, "drops": [0.8], "lr": 0.05, "batch_size": 8, "weight_decay": 0.0001}
    detector |= {"layers": "frozen", "runs": 3, "size": 600, "longest": 1000}
    for data, metric in (("VOC07", "map_11"), ("VOC07+12", "map_11 VOC07+12")):
        what = f"mAP of a Faster R-CNN on a frozen backbone, trained on {data}"
        found["detection", metric] = Reference("tbl:detection", data, what, data, detector)
    masks: dict[str, object] = {"steps": 180_000, "drops": [2 / 3, 8 / 9], "lr": 0.02, "batch_size": 16}
    for kind, short in (("box", "bb"), ("mask", "mk")):
        for ap in ("AP", "AP50", "AP75"):
            what, at = (
                "COCO, Mask R-CNN with C4, all layers trained",
                f"{ap} of {'boxes' if kind == 'box' else 'masks'}",
            )
            found["segmentation", f"{ap.lower()}_{kind}"] = Reference(
                "tbl:coco", f"{ap} {short}", what, "COCO", masks, at
            )
    for data, metric, name in (("VOC07", "map", "mAP"), ("Places205", "accuracy", "accuracy")):
        for k in SHOTS:
            what, at = f"{name} of SVMs on {data}", f"{k} per class"
            found["lowshot", f"{metric}@{k}"] = Reference("tbl:lowshot_voc", f"{data} k={k}", what, data, shots, at)
    return found


REFERENCES = _references()  # by protocol and metric


def describe(reference: Reference) -> str:
    """One column in a line: what was measured, and the scores grouped by encoder."""
    groups: dict[str, list[str]] = {}
    for row in TABLES[reference.label].rows:
        score = _score(row, reference)
        if score and row.system in SHOWN:
            groups.setdefault(row.encoder, []).append(f"{row.system} {score}")
    parts = [", ".join(texts) + (f" ({encoder})" if encoder else "") for encoder, texts in groups.items()]
    where = f"{_title(reference)}{', ' if reference.at else ''}{reference.at}"
    return f"{where}: {'; '.join([*parts, *_notes([reference])])}"


def excerpts(references: Iterable[Reference]) -> list[Excerpt]:
    """The columns that are asked for, those of the same metric in one table."""
    groups: dict[str, dict[str, Reference]] = {}
    for reference in references:
        groups.setdefault(_title(reference), {})[reference.column] = reference
    found = []
    for title, columns in groups.items():
        chosen = list(columns.values())
        rows = [(row, [_score(row, column) for column in chosen]) for row in TABLES[chosen[0].label].rows]
        shown = [(row.system, row.encoder, *cells) for row, cells in rows if row.system in SHOWN and any(cells)]
        header = ("system", "encoder", *(column.at or "score" for column in chosen))
        found.append(Excerpt(title, header, shown, "; ".join(_notes(chosen))))
    return found


def _title(reference: Reference) -> str:
    return f"table {TABLES[reference.label].number}, {reference.what}"


def _score(row: Row, reference: Reference) -> str:
    """A value as a share, as evaluations give it, with its mark and its deviation; empty if there is none."""
    table = TABLES[reference.label]
    value = row.values[table.columns.index(reference.column)]
    if value is None:
        return ""
    spread = TABLES["tbl:lowshot_std"].column(reference.column) if reference.label == "tbl:lowshot_voc" else []
    deviation = "".join(f" ± {std.share}" for other, std in spread if other.system == row.system)
    return (value.share if table.per_cent else value.text) + value.mark + deviation


def _notes(references: Sequence[Reference]) -> list[str]:
    """What the marks of the shown rows mean, and what the text says of the columns."""
    table = TABLES[references[0].label]
    values = [value for column in references for row, value in table.column(column.column) if row.system in SHOWN]
    marks = sorted({value.mark for value in values} - {""})
    return [f"{mark} {table.marks[mark]}" for mark in marks] + [column.also for column in references if column.also]


def is_same(result: Mapping[str, Any], metric: str) -> bool:
    """Whether a metric was measured as in the paper: the same data, k and protocol."""
    reference = find(result, metric)
    if reference is None or result.get("protocol") == "comparison":
        return False
    used = _settings(result, metric)
    for name, expected in reference.settings.items():
        if used.get(name) not in (expected if isinstance(expected, tuple) else (expected,)):
            return False
    data, sizes = DATASETS[reference.data], _sizes(result, metric)
    return sizes == (data.classes, data.train, data.test)[: len(sizes)]


def find(result: Mapping[str, Any], metric: str) -> Reference | None:
    """What a metric is compared with; None: the paper does not report it."""
    protocol = str(result.get("protocol"))
    if protocol == "comparison":
        protocol, metric = {"knn": ("knn", "momentum_accuracy"), "ami": ("clustering", "ami")}.get(metric, ("", ""))
    elif protocol == "clustering" and _AMI.fullmatch(metric):
        metric = "ami"
    elif (protocol, metric) == ("linear", "top1") and "Places205" in _source(result, "test"):
        metric = "top1 Places205"
    elif (protocol, metric) == ("detection", "map_11") and "VOC2012" in _source(result, "train"):
        metric = "map_11 VOC07+12"
    return REFERENCES.get((protocol, metric))


def _source(result: Mapping[str, Any], part: str) -> str:
    """The training or test images, as they were named."""
    return str(_mapping(_mapping(result.get("data")).get(part)).get("source"))


def _settings(result: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """The settings with which a metric was measured: of those that have several values its own."""
    used = dict(_mapping(result.get("settings")))
    found = _AMI.fullmatch(metric)
    if found and found["k"]:
        used["clusters"] = [int(found["k"])]
    shares, rates = used.get("shares"), used.get("classifier_lr")
    if isinstance(shares, list) and isinstance(rates, list) and len(shares) == len(rates):
        at = metric.partition("@")[2]
        used["classifier_lr"] = next((r for s, r in zip(shares, rates, strict=True) if _per_cent(s) == at), None)
    return used


def _sizes(result: Mapping[str, Any], metric: str) -> tuple[object, ...]:
    """Numbers of classes and of training images, and of test images if the protocol has any."""
    found = _AMI.fullmatch(metric)
    if found and found["which"] == "of the run's ":  # clusters of the images it was trained on
        own = _mapping(_mapping(result.get("details")).get("own_clusters"))
        return own.get("classes"), own.get("images")
    data = _mapping(result.get("data"))
    parts = ("train",) if result.get("protocol") == "clustering" else ("train", "test")
    return data.get("classes"), *(_mapping(data.get(part)).get("images") for part in parts)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _per_cent(share: object) -> str:
    return f"{100 * share:g}%" if isinstance(share, int | float) else ""
