"""Evaluations of two runs side by side on the page."""

from protonce.report.evaluations import side_by_side


def result(value, images=10, fingerprint="f", **more):
    return {
        "protocol": "knn",
        "metrics": {"accuracy": value, **more},
        "settings": {"k": 1},
        "features": "pooled",
        "data": {"test": {"source": "there", "images": images, "fingerprint": fingerprint}},
    }


def test_scores_stand_side_by_side_and_missing_ones_are_none():
    found = side_by_side({"A": {"knn": result(0.1), "linear": result(0.3)}, "B": {"knn": result(0.2, extra=0.5)}})
    assert [evaluation.name for evaluation in found] == ["knn", "linear"]
    knn, linear = found
    assert [(row.metric, {t: s and s.mean for t, s in row.scores.items()}) for row in knn.rows] == [
        ("accuracy", {"A": 0.1, "B": 0.2}),
        ("extra", {"A": None, "B": 0.5}),
    ]
    assert linear.rows[0].scores["B"] is None
    assert linear.tested_on == knn.tested_on == "10 images of there"
    assert knn.features == "pooled"
    assert list(knn.details) == ["A", "B"]
    assert list(linear.details) == ["A"]


def test_other_images_are_told():
    more = side_by_side({"A": {"knn": result(0.1)}, "B": {"knn": result(0.2, images=2000)}})
    assert more[0].tested_on == "A: 10 images of there; B: 2,000 images of there"
    other = side_by_side({"A": {"knn": result(0.1)}, "B": {"knn": result(0.2, fingerprint="g")}})
    assert other[0].tested_on == "10 images of there (other images for each run)"
    assert side_by_side({"A": {"odd": {"metrics": 3}}, "B": {}})[0].rows == []
