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
