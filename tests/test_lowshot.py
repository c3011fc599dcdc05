"""Low-shot classification of a run: which features it needs, and each classifier by hand."""

import shutil

import numpy as np
import pytest

from protonce.data.listings import Marks
from protonce.data.sources import open_source
from protonce.errors import UserError
from protonce.evaluate import lowshot, svm
from protonce.evaluate.options import LowshotOptions
from protonce.evaluate.protocols import evaluate
from protonce.evaluate.task import Task
from protonce.results import images_tested


def test_few_shots_need_few_features(trained, others):
    """Of a large set only the images that were drawn are encoded; the scores are those of all features."""
    result = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[2], draws=2, name="few")
    sizes = sorted(len(np.load(file)) for file in (trained.path / "features").glob("*.npy"))
    assert sizes[0] <= 12
    assert sizes[1:] == [30]
    source, test = trained.source(), open_source(str(others))
    train_x, test_x = (svm.unit(trained.features(s, "backbone")[0].numpy()) for s in (source, test))
    marks = np.array(source.labels)[:, None] == np.array(["slope0", "slope1", "slope2"])
    members = [np.flatnonzero(column) for column in marks.T]
    for i, found in enumerate(result["metrics"]["accuracy@2"]["runs"]):
        chosen = lowshot.draw_shots(members, 2, 0, i)
        scores, _ = svm.decisions(train_x[chosen], marks[chosen], test_x)
        assert found == pytest.approx(np.mean([f"slope{c}" for c in scores.argmax(axis=1)] == np.array(test.labels)))


def test_the_nearest_class_mean_and_chosen_costs(trained, others):
    source, test = trained.source(), open_source(str(others))
    train_x, test_x = (svm.unit(trained.features(s, "backbone")[0].numpy()) for s in (source, test))
    marks = np.array(source.labels)[:, None] == np.array(["slope0", "slope1", "slope2"])
    chosen = lowshot.draw_shots([np.flatnonzero(column) for column in marks.T], 4, 0, 0)
    mean = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[4], draws=1, classifier="mean")
    scores = lowshot.class_means(train_x[chosen], marks[chosen], test_x)
    assert mean["metrics"]["accuracy@4"]["mean"] == svm.accuracy(scores, sorted(set(test.labels)), test.labels)
    fixed = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[2], draws=1)
    for cost in ("auto", "benchmark"):
        found = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[2, 4], draws=1, cost=cost)
        scores, _ = svm.decisions(train_x[chosen], marks[chosen], test_x, svm.COSTS[cost])
        assert found["settings"]["cost"] == cost
        assert found["metrics"]["accuracy@4"]["mean"] == svm.accuracy(scores, sorted(set(test.labels)), test.labels)
        assert found["metrics"]["accuracy@2"] == fixed["metrics"]["accuracy@2"]  # two images a class: no choice


@pytest.fixture
def with_a_rare_class(photos, others, tmp_path):
    """The photos and the test images, and a class of three photos and two test images."""
    for folder, name, count in ((photos, "train", 3), (others, "test", 2)):
        shutil.copytree(folder, tmp_path / name)
        (tmp_path / name / "rare").mkdir()
        for i in range(count):
            shutil.copy(folder / "slope0" / f"{i:02d}.png", tmp_path / name / "rare" / f"{i}.png")
    return str(tmp_path / "train"), str(tmp_path / "test")


def test_a_rare_class_is_left_out_and_named(trained, photos, others, with_a_rare_class, capsys):
    """The scores are those of the other classes alone."""
    train, test = with_a_rare_class
    options = {"shots": [2, 16], "draws": 1, "classifier": "mean"}
    found = evaluate(trained, "lowshot", train=train, test=test, **options)
    said = capsys.readouterr().out
    without = evaluate(trained, "lowshot", train=str(photos), test=str(others), quiet=True, **options)
    assert found["metrics"]["accuracy@16"] == without["metrics"]["accuracy@16"]  # all images of each class
    assert found["data"]["classes"] == 3
    assert found["data"]["left_out"] == {"rare": 3}
    assert (found["data"]["test"]["images"], found["data"]["test"]["used"]) == (32, 30)
    assert "lowshot, 3 classes: 51 images" in said
    assert "tested on 30 of 32 images" in said
    assert "left out, as they have fewer than 16 training images: rare (3); --shots 2 keeps all classes" in said
    assert images_tested(found) == f"30 of 32 images of {test}, 1 class left out"
    assert "left_out" not in without["data"]
    assert "used" not in without["data"]["test"]
    whole = evaluate(trained, "lowshot", train=train, test=test, quiet=True, shots=[2], draws=1)
    assert whole["data"]["classes"] == 4


def test_only_rare_test_images_are_refused(trained, with_a_rare_class, tmp_path):
    train, test = with_a_rare_class
    shutil.copytree(f"{test}/rare", tmp_path / "only" / "rare")
    with pytest.raises(UserError, match=r"all test images of .* are of classes with too few training images"):
        evaluate(trained, "lowshot", train=train, test=str(tmp_path / "only"), quiet=True, shots=[4])


def test_a_rare_class_of_several_an_image_loses_its_targets_only(photos, others):
    import dataclasses

    values = np.where(np.random.default_rng(0).random((48, 3)) < 0.5, 1, -1).astype(np.int8)
    sources = [
        dataclasses.replace(open_source(str(folder)), labels=None, marks=Marks(["a", "b", "c"], values[:n], True))
        for folder, n in ((photos, 48), (others, 30))
    ]
    task = Task(None, *sources, LowshotOptions(), None, None)
    left = lowshot.without_classes(task, [1])
    assert left.classes == ["a", "c"]
    for side, source in ((left.train, sources[0]), (left.test, sources[1])):
        assert side.names == source.names
        np.testing.assert_array_equal(side.marks.values, source.marks.values[:, [0, 2]])
        assert side.marks.eleven_points
