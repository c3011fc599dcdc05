"""The charts: each shows what was measured."""

import math
import re
import types

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score

from pages import level
from protonce import manifest
from protonce.report import charts, drawing
from protonce.report.evaluations import side_by_side
from protonce.run import Run, read_assignments
from protonce.run.prototype_files import write_assignments


def test_charts_show_the_metrics_and_the_ami_of_saved_assignments(trained):
    _, labels = trained.images
    found = {chart.name: chart for chart in charts.training(trained, labels)}
    records = trained.metrics
    loss = {line.name: line for line in found["loss"].lines}
    assert list(loss["instance"].y) == [r["instance"] for r in records]
    assert list(loss["prototype"].x) == [2, 3]  # the first epoch is a warm-up
    assert list(loss["prototype, chance level"].y) == [r["prototype_chance"] for r in records[1:]]
    assert [line.name for line in found["concentration"].lines] == ["k = 4", "k = 8"]
    for m, line in enumerate(found["ami"].lines):
        expected = [adjusted_mutual_info_score(labels, read_assignments(trained.path, e)[m]) for e in (1, 2, 3)]
        assert line.y == pytest.approx(expected)
    assert "ami" not in {chart.name for chart in charts.training(trained, None)}


def test_the_bound_is_drawn_before_and_after_the_m_steps(trained):
    """Beside the losses; each caption says whether the system lowers it."""
    records = trained.metrics
    loss, bound, *_ = charts.training(trained, None)
    assert (loss.name, bound.name) == ("loss", "bound")
    before, after = bound.lines
    assert (list(before.x), list(before.y)) == ([1, 2, 3], [r["bound_before"] for r in records])
    assert (list(after.x), list(after.y)) == ([1, 2, 3], [r["bound_after"] for r in records])
    assert "The warm-up has no prototype term" in bound.caption
    assert "warm-up" not in charts._bound(records[1:], trained.terms).caption
    assert "This system has no prototype term" in charts._bound(records, ["instance"]).caption
    old = [{name: value for name, value in r.items() if not name.startswith("bound")} for r in records]
    assert charts._bound(old, trained.terms).lines == []  # recorded by an early version


def counted_information(clusters, labels):
    """I in nats by a loop over the pairs of a cluster and a label."""
    n = len(labels)
    total = 0.0
    for c in set(clusters):
        for known in set(labels):
            both = sum(a == c and b == known for a, b in zip(clusters, labels, strict=True))
            if both:
                alone = sum(a == c for a in clusters) * sum(b == known for b in labels)
                total += both / n * math.log(both * n / alone)
    return total


def test_information_over_the_epochs(trained):
    labels = trained.images[1]
    (chart,) = charts.information({"mine": trained})
    assert [line.name for line in chart.lines] == ["k = 4", "k = 8"]
    for m, line in enumerate(chart.lines):
        expected = [counted_information(read_assignments(trained.path, e)[m].tolist(), labels) for e in (1, 2, 3)]
        assert line.x == [1, 2, 3]
        assert line.y == pytest.approx(expected)
    assert f"the labels have {math.log(3):.2f}" in chart.caption
    rng = np.random.default_rng(0)
    last = read_assignments(trained.path, 3)[1].tolist()
    shuffled = np.mean([counted_information(last, rng.permutation(labels).tolist()) for _ in range(100)])
    stated = float(re.search(r"([0-9.]+) for k = 8", chart.caption)[1])
    assert stated == pytest.approx(shuffled, abs=0.03)


def test_information_of_images_with_a_label_only(trained):
    header, *rows = (trained.path / "images.csv").read_text().splitlines()
    rows[:20] = [row.rpartition(",")[0] + "," for row in rows[:20]]
    manifest.write(trained.path, "images.csv", "\n".join([header, *rows]) + "\n")
    run = Run(trained.path)
    (chart,) = charts.information({"mine": run})
    expected = counted_information(read_assignments(run.path, 2)[0].tolist()[20:], run.images[1][20:])
    assert chart.lines[0].y[1] == pytest.approx(expected)


def fake_run(path, clusters, epochs=(1,), labels=("a", "b", "a", "b")):
    """What the chart asks a run; its clusters are those of a recorded epoch."""
    path.mkdir()
    (path / "config.yaml").touch()  # which makes it a run folder
    for epoch in epochs:
        found = [types.SimpleNamespace(assignment=torch.arange(4) % k) for k in clusters]
        write_assignments(path, epoch, found)
    images = (["w", "x", "y", "z"], list(labels) if labels else None)
    settings = types.SimpleNamespace(clusters=list(clusters), keep_features=0)
    about = {"recorded_epochs": list(epochs), "kept_epochs": []}
    return types.SimpleNamespace(path=path, images=images, settings=settings, **about)


def test_information_of_two_runs(tmp_path):
    """The other run's line is dashed in the colour of the same k, and has a colour of its own for another k."""
    mine = fake_run(tmp_path / "mine", [2, 4])
    (chart,) = charts.information({"MoCo": fake_run(tmp_path / "other", [2, 3], epochs=(1, 5)), "PCL": mine})
    assert [(line.name, line.of) for line in chart.lines] == [
        ("k = 2, PCL", ""),
        ("k = 4, PCL", ""),
        ("k = 2, MoCo", "k = 2, PCL"),
        ("k = 3, MoCo", ""),
    ]
    assert chart.lines[2].x == [1, 5]
    assert chart.lines[0].y == pytest.approx([math.log(2)])  # each cluster is a class
    assert chart.caption.endswith("Dashed: MoCo.")
    drawing.draw_chart(chart)
    unlabelled = fake_run(tmp_path / "unlabelled", [2], labels=None)
    imported = fake_run(tmp_path / "imported", [2], epochs=())
    for other in (unlabelled, imported):
        (chart,) = charts.information({"other": other, "PCL": mine})
        assert [line.name for line in chart.lines] == ["k = 2", "k = 4"]
        assert charts.information({"PCL": mine, "other": other}) == []


def test_a_histogram_counts_every_cluster():
    rng = np.random.default_rng(0)
    one, other = (level(np.r_[np.arange(40), rng.integers(0, 40, 3000)]) for _ in range(2))
    (chart,) = charts.sizes({"fixed": [one], "estimated": [other]})
    assert f"{one.size.std():.1f} for fixed, {other.size.std():.1f} for estimated." in chart.caption
    for line, size in zip(chart.lines, (one.size, other.size), strict=True):
        assert sum(line.y) == 40
        for left, right, count in zip(line.x, line.x[1:], line.y, strict=False):
            assert count == ((size > left) & (size < right)).sum()


def test_runs_with_equal_numbers_of_clusters_are_compared():
    rng = np.random.default_rng(0)
    few, many, more = (level(np.r_[np.arange(k), rng.integers(0, k, 200)]) for k in (5, 10, 20))
    found = charts.sizes({"other": [many], "mine": [few, many, more]})
    assert [[line.name for line in chart.lines] for chart in found] == [["mine"], ["other", "mine"], ["mine"]]


def test_low_shot_results_become_a_curve_over_k():
    metrics = {f"accuracy@{k}": {"mean": k / 20, "std": 0.01, "runs": [k / 20] * 5} for k in (1, 16, 2)}
    results = {"lowshot": {"metrics": metrics}, "knn": {"metrics": {"accuracy": 0.5, "accuracy@²": 1}}}
    (chart,) = charts.evaluations(side_by_side({"mine": results}))
    (line,) = chart.lines
    assert (line.x, line.y) == ([1, 2, 16], [0.05, 0.1, 0.8])
    assert line.low == pytest.approx([0.04, 0.09, 0.79])


def test_a_single_draw_has_no_band_and_two_runs_a_curve_each():
    def metrics(std):
        return {"lowshot": {"metrics": {f"accuracy@{k}": {"mean": k / 20, "std": std} for k in (1, 2)}}}

    (chart,) = charts.evaluations(side_by_side({"other": metrics(None), "mine": metrics(0.1)}))
    assert [line.name for line in chart.lines] == ["accuracy, other", "accuracy, mine"]
    assert chart.lines[0].low is None
    assert chart.lines[1].low == pytest.approx([-0.05, 0.0])
    assert "standard deviation" in chart.caption
    (chart,) = charts.evaluations(side_by_side({"mine": metrics(None)}))
    assert chart.caption == "A single draw."
