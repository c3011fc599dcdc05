"""`protonce demo`, from the command to its files; short, but whole."""

import dataclasses
import json
from pathlib import Path

import pytest

import protonce
from protonce import config, demo, trainings
from protonce.cli import main
from protonce.data import builtin
from protonce.encoder import build
from protonce.evaluate.knn import knn_accuracy
from protonce.features import extract
from protonce.methods import registry

# Mean grey of each of the 30 classes, seed 0.
CLASS_MEANS = [
    60.78, 59.607, 56.926, 60.739, 54.481, 51.101, 60.464, 57.618, 58.798, 63.297,
    71.606, 60.134, 60.617, 62.458, 62.051, 52.403, 51.706, 53.198, 60.582, 60.003,
    57.999, 49.51, 49.318, 72.687, 60.0, 51.426, 61.701, 54.931, 48.518, 60.861,
]  # fmt: skip


@pytest.fixture
def short_demo(monkeypatch):
    """Two epochs of a few of the images."""
    command = demo._command

    def short(out, name, seed, quick):
        options = "--epochs 2 --width 4 --clusters 10,20" + (" --limit 300" if quick else "")
        return [
            *command(out, name, seed, quick),
            *options.split(),
            *(("--warmup-epochs", "1") if name == "pcl" else ()),
        ]

    monkeypatch.setattr(demo, "_command", short)


@pytest.mark.slow
def test_demo(short_demo, few_compared, tmp_path, capsys):
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    rows = json.loads((out / "demo.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["raw-pixels", "untrained", "moco", "moco-queue", "pcl"]
    for row in rows:
        assert row.keys() == {"name", "knn", "ami"}
        assert f"{100 * row['knn']:.1f}" in shown
    assert 0.15 < rows[0]["knn"] < 0.35, "raw pixels do badly"
    run = protonce.load(out / "pcl")
    train, test = run.loader("builtin"), run.loader("builtin", "test")
    untrained = build(run.settings).eval().features
    accuracy = knn_accuracy(
        extract(untrained, train), train.source.labels, extract(untrained, test), test.source.labels, k=20
    )
    assert rows[1]["knn"] == pytest.approx(accuracy)
    assert " train FOLDER --out runs/first" in shown
    assert f"open {out / 'pcl' / 'report.html'} in a browser" in " ".join(shown.split())
    page = (out / "pcl" / "report.html").read_text()
    assert f"{rows[4]['knn']:.3f}" in page
    assert not (out / "moco" / "report.html").exists(), "MoCo is on PCL's page"
    assert "epoch" in shown, "progress is shown without a terminal too"

    assert main(["demo", "--out", str(out), "--seed", "3"]) == 0  # shown again, not trained again
    assert json.loads((out / "demo.json").read_text())["rows"] == rows
    assert main(["demo", "--out", str(out), "--seed", "4"]) == 2
    assert "another seed" in capsys.readouterr().err


def test_a_quick_demo_has_a_folder_of_its_own(monkeypatch):
    told = []
    monkeypatch.setattr(demo, "run_demo", lambda out, seed, quick: told.append((str(out), quick)))
    monkeypatch.setattr(trainings, "warm_up", lambda: None)
    for words in (["demo"], ["demo", "--quick"], ["demo", "--quick", "--out", "mine"]):
        assert main(words) == 0
    assert told == [("protonce-demo", False), ("protonce-demo-quick", True), ("mine", True)]


@pytest.mark.slow
def test_a_quick_demo(few_compared, tmp_path, capsys):
    out = tmp_path / "demo"
    assert main(["demo", "--quick", "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "too short to compare" in shown
    assert "one seed" not in shown
    assert [row["name"] for row in json.loads((out / "demo.json").read_text())["rows"]][2:] == ["moco", "pcl"]
    assert len(protonce.load(out / "pcl").metrics) == 3
    assert (out / "pcl" / "report.html").exists()
    assert "epoch 3/3" in (out / "pcl.log").read_text()
    # What a forked process with one thread learns is what `protonce train` does in this one, which has one thread.
    again = tmp_path / "again"
    assert main(demo._command(again, "pcl", 0, quick=True)) == 0
    assert protonce.load(again).encoder_hash == protonce.load(out / "pcl").encoder_hash
    assert main(["demo", "--out", str(out)]) == 2
    assert "a demo of another length" in capsys.readouterr().err


def test_a_training_that_fails_ends_the_demo_with_its_last_words(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "_command", lambda out, *_: ["train", str(tmp_path / "none"), "--out", str(out)])
    assert main(["demo", "--quick", "--out", str(tmp_path / "demo")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("protonce: training "), said
    assert "none does not exist" in said
    assert f"(see {tmp_path / 'demo'}" in said


def test_the_demo_has_the_settings_of_the_study_and_says_what_it_found():
    folder = Path(__file__).parents[1] / "benchmarks" / "results" / "claim" / "builtin"
    summary = json.loads((folder / "summary.json").read_text())
    knn, ami = (summary["leads"]["moco"][score] for score in ("knn", "ami"))
    told = {"seeds": knn["seeds"], "knn": knn["positive"], "ami": ami["positive"]}
    assert told == demo.STUDY
    recipe = settings_of("pcl", config.read_recipe("demo"))
    only_pcls = {"clusters", "prototype_weight", "ramp_epochs", "warmup_epochs"}
    for system, settings in summary["chosen"].items():
        asked = {**config.read_recipe(settings["recipe"]), **{k: v for k, v in settings.items() if k != "recipe"}}
        for name, value in settings_of("pcl", asked).items():
            if system == "pcl" or name not in only_pcls:
                assert recipe[name] == value, (system, name)


def settings_of(method, values):
    """Settings and options of a system, with the defaults of those that are not named."""
    entry = registry.find(method)
    common, options = registry.part(values, entry, "the test")
    return {**dataclasses.asdict(config.Settings(**common)), **dataclasses.asdict(entry.options(**options))}


def test_the_demo_leaves_other_folders_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_the_built_in_images_are_frozen():
    """A change of a single stroke must be a new version, with new numbers in its docstring."""
    images, labels = builtin.draw_images("train", 0)
    assert builtin.VERSION == 1
    names = builtin.classes()
    means = [images[[i for i, label in enumerate(labels) if label == name]].mean() for name in names]
    assert means == pytest.approx(CLASS_MEANS, abs=0.02)
