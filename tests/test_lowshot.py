"""Low-shot classification of a run: which features it needs, and each classifier by hand."""

import numpy as np
import pytest

from protonce.data.sources import open_source
from protonce.evaluate import lowshot, svm
from protonce.evaluate.protocols import evaluate


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
    auto = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[2, 4], draws=1, cost="auto")
    scores, _ = svm.decisions(train_x[chosen], marks[chosen], test_x, None)
    assert auto["metrics"]["accuracy@4"]["mean"] == svm.accuracy(scores, sorted(set(test.labels)), test.labels)
    fixed = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[2], draws=1)
    assert auto["metrics"]["accuracy@2"] == fixed["metrics"]["accuracy@2"]  # two images a class: nothing to choose by
