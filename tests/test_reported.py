"""The paper's scores stand beside a result only if data, k and protocol are the same."""

import copy
import dataclasses

import pytest

from protonce.evaluate import protocols
from protonce.evaluate.options import OBJECT_PROTOCOLS, PROTOCOLS
from protonce.evaluate.task import over_draws
from protonce.reported import DATASETS, REFERENCES, describe, excerpts, find, is_same
from protonce.results import from_paper, scores

CHOSEN = {  # what the protocols choose on the paper's data, in addition to their options
    "knn": {"neighbours of momentum_accuracy": 200},
    "linear": {"views": "augmented", "epochs": 100, "lr": 10.0, "cells": 1},
    "lowshot": {},
    "semisup": {"classifier_lr": [1.0, 0.1]},
    "clustering": {"clusters": [25000]},
    "detection": {},
    "segmentation": {},
}


def as_in_the_paper(protocol, metric):
    """An evaluation of the paper's data with the default options, as `protonce evaluate` writes it."""
    reference = REFERENCES[protocol, metric]
    options = {**PROTOCOLS, **OBJECT_PROTOCOLS}[protocol]()
    size, settings = DATASETS[reference.data], {**dataclasses.asdict(options), **CHOSEN[protocol]}
    data = {"classes": size.classes, "train": {"source": "a", "images": size.train}}
    if reference.data == "VOC07+12":
        data["train"]["source"] = "VOC2007:a, VOC2012:a"
    if protocol != "clustering":
        data["test"] = {"source": f"{reference.data}@val:b", "images": size.test}
    if metric.endswith("Places205"):
        settings |= {"epochs": 40, "lr": 0.3, "cells": 2}
    return {"protocol": protocol, "metrics": {metric.split()[0]: 0.5}, "settings": settings, "data": data}


@pytest.mark.parametrize(("protocol", "metric"), REFERENCES)
def test_the_defaults_on_the_papers_data_are_compared(protocol, metric):
    result = as_in_the_paper(protocol, metric)
    (score,) = scores(result)
    assert score.paper.startswith("table ")
    assert score.apart is None
    assert from_paper([score]) == []
    for changed in ("classes", "train", "test"):
        other = copy.deepcopy(result)
        if changed == "classes":
            other["data"]["classes"] -= 1
        elif changed in other["data"]:
            other["data"][changed]["images"] -= 1
        else:
            continue
        (apart,) = scores(other)
        assert apart.paper == ""
        assert describe(apart.apart) == score.paper
        assert len(from_paper([apart, apart])) == 1
        assert from_paper([apart, score]) == []  # it stands beside the other


@pytest.mark.parametrize("metric", ["map@4", "accuracy@16"])
def test_beside_the_papers_deviation_stands_ours_with_n(metric):
    runs = [0.41, 0.44, 0.42, 0.47, 0.43]
    mean = sum(runs) / 5
    squares = sum((run - mean) ** 2 for run in runs)
    result = as_in_the_paper("lowshot", metric) | {"metrics": {metric: over_draws(runs)}}
    protocols._remark_on_deviations(result)
    (score,) = scores(result)
    assert score.std == pytest.approx((squares / 4) ** 0.5)
    assert score.remark == f"± {(squares / 5) ** 0.5:.3f} with n, as in the paper" == "± 0.021 with n, as in the paper"
    assert score.text == "0.434 ± 0.023"
    assert "±" in score.paper
    elsewhere = copy.deepcopy(result) | {"remarks": {}}
    elsewhere["data"]["train"]["images"] -= 1
    protocols._remark_on_deviations(elsewhere)
    assert elsewhere["remarks"] == {}


@pytest.mark.parametrize(
    ("protocol", "metric", "settings"),
    [
        ("knn", "momentum_accuracy", {"tau": 0.07}),
        ("linear", "top1", {"views": "cached"}),
        ("linear", "top1", {"epochs": 50}),
        ("linear", "top1", {"cells": 2}),
        ("linear", "top1 Places205", {"cells": 1}),
        ("linear", "map", {"cost": "auto"}),
        ("lowshot", "map@4", {"classifier": "mean"}),
        ("lowshot", "accuracy@4", {"draws": 3}),
        ("semisup", "top5@1%", {"classifier_lr": [0.1, 0.1]}),
        ("semisup", "top5@10%", {"lr": 0.1}),
        ("clustering", "ami", {"clusters": [1000]}),
    ],
)
def test_another_protocol_is_not_compared(protocol, metric, settings):
    result = as_in_the_paper(protocol, metric)
    assert is_same(result, metric)
    result["settings"] |= settings
    assert not is_same(result, metric)
    assert find(result, metric) is not None


def test_each_rate_belongs_to_its_share():
    result = as_in_the_paper("semisup", "top5@1%")
    result["settings"] |= {"classifier_lr": [1.0, 1.0]}
    assert is_same(result, "top5@1%")
    assert not is_same(result, "top5@10%")


def test_the_number_of_clusters_of_each_score():
    result = as_in_the_paper("clustering", "ami")
    names = ["ami (k = 1000)", "ami (k = 25000)", "ami of the run's k = 25000", "ami of the run's k = 50000", "nmi"]
    result |= {"metrics": dict.fromkeys(names, 0.5), "settings": {"clusters": [1000, 25000]}}
    assert [is_same(result, name) for name in names] == [False, True, False, False, False]
    result["details"] = {"own_clusters": {"images": 1_281_167, "classes": 1000}}
    assert [is_same(result, name) for name in names] == [False, True, True, False, False]
    assert [bool(score.apart) for score in scores(result)] == [True, False, False, True, False]
    assert from_paper(scores(result)) == []  # it stands beside k = 25,000


def test_what_is_said_of_the_papers_scores():
    assert describe(REFERENCES["clustering", "ami"]) == (
        "table 5, AMI of k-means, k = 25,000, on ImageNet: "
        "DeepCluster 0.281, MoCo 0.285; PCL 0.410 (ResNet-50, 200 epochs)"
    )
    shots = describe(REFERENCES["lowshot", "map@1"])
    assert shots.startswith("table 1, mAP of SVMs on VOC07, 1 per class: ")
    assert "MoCo 0.314, PCL 0.469 ± 0.0406 (ResNet-50, 200 epochs)" in shots
    assert "MoCo v2 0.463, PCL v2 0.479 ± 0.0412 (ResNet-50-MLP, 200 epochs)" in shots
    tuned = describe(REFERENCES["semisup", "top5@1%"])
    assert "Random 0.220, Supervised baseline 0.484 (ResNet-50)" in tuned
    assert tuned.endswith("standard deviation below 0.006 over 5 runs")
    linear = describe(REFERENCES["linear", "map"])
    assert "MoCo 0.792*, PCL 0.823 (R50, 24M, 200 epochs)" in linear
    assert linear.endswith("* from the released model; others from their papers")


def test_a_table_of_the_papers_scores():
    two, places = excerpts([REFERENCES["lowshot", f"{m}@{k}"] for m in ("map", "accuracy") for k in (1, 16)])
    assert two.title == "table 1, mAP of SVMs on VOC07"
    assert places.title == "table 1, accuracy of SVMs on Places205"
    assert two.header == ("system", "encoder", "1 per class", "16 per class")
    assert two.rows[0] == ("Random", "ResNet-50", "0.080", "0.085")
    assert two.rows[3] == ("PCL", "ResNet-50, 200 epochs", "0.469 ± 0.0406", "0.743 ± 0.0039")
    assert places.rows[-1] == ("PCL v2", "ResNet-50-MLP, 200 epochs", "0.125 ± 0.0026", "0.323 ± 0.0004")
    (tuned,) = excerpts([REFERENCES["semisup", "top5@1%"], REFERENCES["semisup", "top5@10%"]])
    assert ("Supervised baseline", "ResNet-50", "0.484", "0.804") in tuned.rows
    assert tuned.notes == "standard deviation below 0.006 over 5 runs"


def test_the_demo_is_compared_apart():
    result = {"protocol": "comparison", "metrics": {"knn": 0.7, "ami": 0.4, "other": 1}, "settings": {}, "data": {}}
    assert [score.paper for score in scores(result)] == ["", "", ""]
    assert [table.title[:7] for table in from_paper(scores(result))] == ["table 4", "table 5"]


@pytest.mark.parametrize("odd", [None, 3, [], {"train": 3}, {"train": {"images": None}}])
@pytest.mark.parametrize("settings", [None, {"shares": [None], "classifier_lr": ["x"]}, {"shares": ["1"]}])
def test_odd_files_are_never_the_papers(odd, settings):
    for protocol, metric in REFERENCES:
        assert not is_same({"protocol": protocol, "settings": settings, "data": odd, "details": odd}, metric)
