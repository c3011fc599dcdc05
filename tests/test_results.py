"""Results of evaluations, whatever their files hold."""

import json

import pytest

from protonce.results import images_tested, scores


@pytest.mark.parametrize("value", [None, "good", [1, 2], {"a": {"b": 1}}, True, float("nan"), {"mean": None}])
def test_a_metric_that_is_not_a_number_is_shown_as_text(value):
    (found,) = scores({"protocol": "knn", "metrics": {"accuracy": value}})
    assert found.mean is None
    assert found.text == json.dumps(value)
    assert scores({"metrics": None}) == scores({}) == []
    assert images_tested({"data": None}) == images_tested({}) == ""


def test_what_was_tested_on_and_remarked():
    test = {"source": "there", "images": 2000, "used": 1500}
    assert images_tested({"data": {"test": test}}) == "1,500 of 2,000 images of there"
    assert images_tested({"data": {"test": test, "left_out": {"a": 1}}}).endswith("of there, 1 class left out")
    assert images_tested({"data": {"train": {**test, "images": "?"}, "left_out": {"a": 1, "b": 0}}}).endswith(
        "1,500 of ? images of there, 2 classes left out"
    )
    one, other = scores({"metrics": {"a": 1, "b": 2}, "remarks": {"a": "45 images"}})
    assert (one.remark, other.remark) == ("45 images", "")
    assert scores({"metrics": {"a": 1}, "remarks": 3})[0].remark == ""
