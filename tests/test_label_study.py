"""The study of benchmarks/labels.py."""

import copy
import itertools

import numpy as np
import pytest

from benchmarks.labels import calibration_error, score, study
from test_labelling import data


def test_the_calibration_error_by_hand():
    confidence = np.array([0.95, 0.92, 0.55, 0.51, 0.1, 1.0])
    right = np.array([True, False, True, True, False, True])
    # bins from 0.9 (three images), from 0.5 (two) and from 0.1 (one)
    expected = (3 * abs((0.95 + 0.92 + 1.0) / 3 - 2 / 3) + 2 * abs(0.53 - 1) + 0.1) / 6
    assert calibration_error(confidence, right) == pytest.approx(expected)


def test_only_images_whose_label_was_not_told_are_scored():
    x, which = data(classes=3, each=10)
    labels = [f"class {c}" for c in which.tolist()]
    found = score(x, labels, [0, 1, 10, 11, 20, 21])
    assert found["accuracy"] == 1.0
    labels[1] = "class 2"  # a wrong label that is told is no mistake of the program
    assert score(x, labels, [0, 1, 2, 3, 10, 11, 20, 21])["accuracy"] == 1.0
    assert score(x, labels, [0, 2])["accuracy"] == pytest.approx(7 / 28), "of one class only"


def test_the_study_of_a_run_and_how_it_goes_on(trained, capsys):
    *_, half, _ = itertools.islice(study(str(trained.path), None, 2, {}), 6)
    half = copy.deepcopy(half)
    *_, found = study(str(trained.path), None, 2, half)
    assert found["cells"][: len(half["cells"])] == half["cells"]
    assert [cell["labels"] for cell in found["cells"]] == [3] * 3 + [6] * 3 + [15] * 3 + [30] * 3
    assert [len(cell["draws"]) for cell in found["cells"]] == [2, 2, 1] * 4
    assert (found["images"], found["classes"]) == (48, 3)
    assert capsys.readouterr().out.count("calibration error") == 6 + 12 - len(half["cells"])
    *_, other = itertools.islice(study(str(trained.path), None, 1, half), 1)
    assert len(other["cells"]) == 1, "of other draws"
