"""The five rows of appendix A: what each trains, that they differ, and that what is done is not done again."""

import dataclasses
import json
import shutil
import types

import pytest

from conftest import SMALL
from protonce import ablation, manifest
from protonce.ablation import FOLDERS, PAPER, ROWS, is_paper, run_ablation
from protonce.cli import main
from protonce.errors import UserError
from protonce.evaluate import protocols
from protonce.evaluate.options import PROTOCOLS
from protonce.reported import DATASETS, HEADING
from protonce.run import load

QUICK = {"epochs": 2, "warmup_epochs": 1, "draws": 1, "share": 0.3, "quiet": True, **SMALL}
LABELS = "12 images, 31.6 % of the labels instead of 30 %: rounded in each class"


def mark(run, metric, value):
    """Give a kept evaluation a value that no other has."""
    result = run.evaluations["semisup"]
    result["metrics"][metric]["mean"] = value
    manifest.write(run.path, "evaluations/semisup.json", json.dumps(result))


def test_five_rows_and_none_is_made_twice(photos, tmp_path, monkeypatch, capsys):
    rows = run_ablation(str(photos), tmp_path, **QUICK)
    assert [row.name for row in rows] == [row.system for row in PAPER.rows] == list(ROWS)
    kept = json.loads((tmp_path / "ablation.json").read_text())
    assert (kept["fine_tuning"], kept["share"], kept["draws"]) == ("top1", 0.3, 1)  # of three classes
    assert kept["labels"] == LABELS
    assert kept["rows"][0]["name"] == "instance only"
    runs = {name: load(tmp_path / folder) for name, folder in FOLDERS.items()}
    # The loss of the last epoch says which terms were trained; that of the first whether there was a warm-up.
    expected = {
        "instance only": ({"instance"}, {"instance"}),
        "proto only (w/o warm-up)": ({"prototype"}, {"prototype"}),
        "proto only (w/ warm-up)": ({"instance"}, {"prototype"}),
        "instance + proto (w/o warm-up)": ({"instance", "prototype"}, {"instance", "prototype"}),
        "instance + proto (w/ warm-up)": ({"instance"}, {"instance", "prototype"}),
    }
    for name, run in runs.items():
        first, last = ({"instance", "prototype"} & record.keys() for record in run.metrics)
        assert (first, last) == expected[name], name
    assert len({run.encoder_hash for run in runs.values()}) == 5
    for row in rows:
        kept = runs[row.name].evaluations
        assert row.fine_tuning == kept["semisup"]["metrics"]["top1@30%"]["mean"]
        assert row.linear == kept["linear"]["metrics"]["top1"]

    monkeypatch.setattr(protocols, "RUNNERS", {})
    mark(runs["instance only"], "top1@30%", 0.125)
    expected = [dataclasses.replace(rows[0], fine_tuning=0.125), *rows[1:]]
    assert run_ablation(str(photos), tmp_path, **{**QUICK, "quiet": False}) == expected
    printed = capsys.readouterr().out
    ours, heading, theirs = printed.partition(HEADING)
    assert heading  # the paper's rows are in a table of their own
    assert "75.3" in theirs
    assert "75.3" not in ours
    assert "top-1, 30" in ours
    assert f"fine-tuned on {LABELS};" in printed
    assert all("instance + proto (w/ warm-up)" in part for part in (ours, theirs))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--warmup-epochs", "0"], "two rows of the ablation need a warm-up"),
        (["--epochs", "1"], "rows would not differ"),
        (["--terms", "both"], "unrecognized arguments: --terms"),
    ],
)
def test_what_would_compare_nothing_is_refused(options, sentence, photos, tmp_path, capsys):
    small = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value).strip("[]"))]
    arguments = ["ablation", str(photos), "--out", str(tmp_path / "a"), "--epochs", "2", *small, *options]
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_other_test_images_are_other_results(photos, tmp_path):
    """Of six classes, top-5 as in the paper. And labels are looked at before anything is trained."""
    for i, file in enumerate(sorted(photos.glob("*/*"))):
        for part in ("train", "test") if i % 3 == 0 else ("train",):
            (tmp_path / part / f"{file.parent.name}-{i % 2}").mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tmp_path / part / f"{file.parent.name}-{i % 2}" / f"{part}{i}.png")
    rows = run_ablation(str(tmp_path / "train"), tmp_path / "a", **QUICK)
    again = run_ablation(str(tmp_path / "train"), tmp_path / "a", test=str(tmp_path / "test"), **QUICK)
    assert len(again) == len(rows) == 5
    for folder in FOLDERS.values():
        kept = load(tmp_path / "a" / folder).evaluations
        assert [kept[name]["data"]["test"]["images"] for name in ("linear", "semisup")] == [16, 16]
    mark(load(tmp_path / "a" / FOLDERS["instance only"]), "top5@30%", 0.125)
    marked = run_ablation(str(tmp_path / "train"), tmp_path / "a", test=str(tmp_path / "test"), **QUICK)
    assert marked[0].fine_tuning == 0.125
    for bad in ({"share": 5}, {"draws": 0}, {"test": str(photos)}):
        with pytest.raises(UserError):
            run_ablation(str(photos), tmp_path / "b", **{**QUICK, **bad})
    with pytest.raises(UserError, match="has no labels"):
        run_ablation(str(photos / "slope0"), tmp_path / "b", **{**QUICK, "clusters": [2, 3], "batch_size": 8})
    assert not (tmp_path / "b").exists()


def test_terms_are_not_for_the_caller(photos, tmp_path):
    with pytest.raises(UserError, match="are varied by the ablation"):
        run_ablation(str(photos), tmp_path, terms="both", **QUICK)


def test_the_papers_recipe_is_the_default_at_imagenets_size(photos, tmp_path, monkeypatch):
    given = {name: value for name, value in SMALL.items() if name != "recipe"}
    monkeypatch.setattr(ablation, "MANY", 48)
    assert ablation._plan(str(photos), tmp_path, given).recipe == "pcl-v1"
    assert ablation._plan(str(photos), tmp_path, {**given, "recipe": "small-v2"}).recipe == "small-v2"
    monkeypatch.setattr(ablation, "MANY", 49)
    assert ablation._plan(str(photos), tmp_path, given).recipe == "laptop-v2"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"recipe": "pcl-v1"}, True),
        ({"recipe": "pcl-v1", "epochs": 200, "workers": 4, "seed": 3}, True),
        ({"recipe": "pcl-v1", "epochs": 100}, False),
        ({"recipe": "pcl-v1", "width": 32}, False),
        ({"recipe": "pcl-v2"}, False),
        ({}, False),
    ],
)
def test_only_the_papers_training_is_compared(settings, expected):
    assert is_paper(settings) is expected


@pytest.mark.parametrize("train", [DATASETS["ImageNet"].train, 1000])
def test_the_papers_numbers_stand_beside_the_papers_protocol(train, photos, tmp_path, monkeypatch, capsys):
    """Whole, from recipe to print: with training and evaluation replaced by their results."""

    def evaluated(run, protocol, **_):
        size = DATASETS["ImageNet"]
        data = {"classes": size.classes, "train": {"images": train}, "test": {"images": size.test}}
        options = PROTOCOLS[protocol]()
        chosen = {
            "semisup": {"shares": [0.01], "classifier_lr": [1.0]},
            "linear": {"views": "augmented", "lr": 10.0, "cells": 1},
        }
        settings = {**dataclasses.asdict(options), **chosen[protocol]}
        settings["epochs"] = 20 if protocol == "semisup" else 100
        metrics = {"top1": 0.6, "top5@1%": {"mean": 0.7, "std": 0.01}}
        return {"protocol": protocol, "metrics": metrics, "settings": settings, "data": data}

    recipes = []
    monkeypatch.setattr(ablation, "_check", lambda *_: 1000)
    monkeypatch.setattr(ablation, "_plan", lambda *_: types.SimpleNamespace(recipe="pcl-v1"))
    monkeypatch.setattr(ablation, "train", lambda *_, **settings: recipes.append(settings["recipe"]))
    monkeypatch.setattr(ablation, "evaluate", evaluated)
    run_ablation(str(photos), tmp_path)
    assert recipes == ["pcl-v1"] * 5
    printed = capsys.readouterr().out
    same = train == DATASETS["ImageNet"].train
    assert (HEADING in printed) is not same
    (last,) = [line.split() for line in printed.splitlines() if "instance + proto (w/ warm-up)" in line][:1]
    assert ("75.3" in last) is same
