"""The map of some classes."""

import json

import numpy as np
import pytest

from pages import Text
from protonce import manifest
from protonce.cli import main
from protonce.cli.report import parse_classes
from protonce.errors import UserError
from protonce.report import drawing
from protonce.report.map_classes import choose_classes, sample_of
from protonce.report.page import write_report
from protonce.run import Run

pytestmark = pytest.mark.usefixtures("quick_page")
LABELS = ["pear", "fig", "", "apple", "fig", "kiwi", "pear", "apple"]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("40", 40),
        ("-1", -1),
        ("a,b c", ["a", "b c"]),
        ("a, b", ["a", "b"]),
        ("3,", ["3"]),
        ('"a, b",c', ["a, b", "c"]),
        (",", []),
    ],
)
def test_a_number_or_a_list(text, parsed):
    assert parse_classes(text) == parsed


def test_the_first_classes_or_those_named():
    assert choose_classes(2, LABELS, "RUN") == ["apple", "fig"]
    assert choose_classes(40, LABELS, "RUN") == ["apple", "fig", "kiwi", "pear"]  # all; no label is no class
    assert choose_classes(["pear", "apple", "pear"], LABELS, "RUN") == ["apple", "pear"]


def test_only_images_of_these_classes_are_sampled():
    assert sample_of(8, LABELS, ["fig", "kiwi"], 10).tolist() == [1, 4, 5]
    assert sample_of(8, LABELS, None, 10).tolist() == list(range(8))
    many = [str(i % 7) for i in range(700)]
    some = sample_of(700, many, ["2", "5"], 50)
    assert len(set(some.tolist())) == 50
    assert {many[i] for i in some} == {"2", "5"}
    assert (some == sample_of(700, many, ["2", "5"], 50)).all()


@pytest.mark.parametrize(
    ("asked", "labels", "said"),
    [
        (0, LABELS, "--classes is 0; give at least 1"),
        ([], LABELS, "--classes names no class"),
        (["figg"], LABELS, r"'figg', which is no class of the images of RUN; did you mean 'fig'\?"),
        (["zzz"], LABELS, "they are 'apple' to 'pear'"),
        ([""], LABELS, "'', which is no class"),
        (3, None, "the images of RUN have no labels; leave out --classes"),
    ],
)
def test_classes_that_cannot_be_shown(asked, labels, said):
    with pytest.raises(UserError, match=said):
        choose_classes(asked, labels, "RUN")


def test_the_command_shows_these_classes_and_says_so(trained, monkeypatch, capsys):
    labels = trained.images[1]
    run = str(trained.path)
    assert main(["report", run, "--classes", "2"]) == 0
    page = Text(trained.path / "report.html")
    expected = [i for i, label in enumerate(labels) if label in ("slope0", "slope1")]
    assert page.data["map"]["images"] == expected
    assert page.text.count("The map shows all 32 images of 2 of 3 classes (slope0, slope1).") == 2  # glance and map
    assert len(page.data["names"]) == len(labels)  # the rest of the page is of all images
    monkeypatch.setattr("protonce.report.scatter.POINTS", 10)
    page = Text(write_report(trained, classes=["slope2"], quiet=True))
    assert {labels[i] for i in page.data["map"]["images"]} == {"slope2"}
    assert "The map shows 10 of the 16 images of 1 of 3 classes (slope2), sampled at random." in page.text
    capsys.readouterr()
    for text, said in (
        ("slope9", "did you mean 'slope"),
        ("0", "at least 1"),
        ('"slope1', "separate names"),
        ("9" * 5000, "is not a number"),
    ):
        assert main(["report", run, "--classes", text]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_run_without_a_map_does_not_speak_of_it(trained):
    manifest.write(trained.path, "metrics.jsonl", json.dumps(trained.metrics[0]) + "\n")
    manifest.remove(trained.path, "encoder.safetensors", "encoder.json", "prototypes.npz")
    page = Text(write_report(Run(trained.path), classes=2, quiet=True))
    assert "The map shows" not in page.text
    assert "There is no map" in page.text


def test_the_legend_names_only_groups_on_the_map():
    places = {"run": np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)}
    figure = drawing.draw_map(places, np.array([2, 2, 2, 0, 0, 2]), ["a", "b", "c", "d"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["c", "a"]
