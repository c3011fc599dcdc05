"""`protonce compare`: rows, budget, cells and the table."""

import csv
import io
import json
import math
import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from processes import Module
from protonce.cli import main
from protonce.compare import budget, running
from protonce.compare.budget import Pace, epochs_in
from protonce.compare.cell import open_images, run_cell
from protonce.compare.cells import Cell, Images, read_result
from protonce.compare.comparison import Budget, compare, make_rows, with_epochs
from protonce.compare.contenders import SHARED, read_contenders
from protonce.compare.leads import holm, lead, t_test
from protonce.compare.names import SCORES, USUAL
from protonce.compare.page import curves, from_paper
from protonce.compare.planning import warm_up
from protonce.compare.table import cells_of, pair_text, summarise, to_csv, to_latex
from protonce.config import Settings, read_recipe
from protonce.errors import UserError
from protonce.run import load

SMALL = {"backbone": "resnet10t", "width": 4, "image_size": 16, "batch_size": 16, "clusters": [3, 6], "dim": 16}


def test_holms_correction_by_hand():
    # 0.01 x 4, 0.02 x 3, 0.03 x 2 (below the one before it), 0.9 x 1
    assert holm({"b": 0.02, "a": 0.01, "d": 0.9, "c": 0.03}) == pytest.approx(
        {"a": 0.04, "b": 0.06, "c": 0.06, "d": 0.9}
    )
    assert holm({"a": 0.4, "b": 0.6}) == pytest.approx({"a": 0.8, "b": 0.8})
    assert holm({}) == {}


def test_the_paired_t_test_by_hand():
    # mean 3, deviation 1.5811, t = 3 / (1.5811 / sqrt 5) = 4.2426 with 4 degrees of freedom: p = 0.01324 in tables
    assert t_test([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(0.01324, abs=1e-5)
    assert t_test([0.0, 0.0]) == 1
    assert t_test([1.0, 1.0]) == 0


def test_rows_are_systems_recipes_and_files(tmp_path):
    own = tmp_path / "queue.yaml"
    own.write_text("method: moco\nqueue_push: after\nlr: 0.5\n")
    shared = {"width": 16, "lr": 0.1, "prototype_weight": 2.0}
    moco, pcl, v2, queue = read_contenders(["moco", "pcl", "moco-v2", str(own)], shared)
    assert moco.settings == {"width": 16, "lr": 0.1, "method": "moco"}, "an option of another system is left out"
    assert pcl.settings == {"width": 16, "lr": 0.1, "prototype_weight": 2.0, "method": "pcl"}
    assert (v2.name, v2.method) == ("moco-v2", "moco")
    assert v2.settings["queue"] == 65536
    assert v2.settings["width"] == 16
    assert not (set(v2.settings) - {"width"}) & set(SHARED)
    assert "backbone" in read_recipe("moco-v2")
    assert queue.settings == {"width": 16, "lr": 0.5, "method": "moco", "queue_push": "after"}
    assert queue.name == "queue"
    assert set(SHARED) <= set(Settings.names())


@pytest.mark.parametrize(
    ("systems", "text", "words"),
    [
        (["moco", "moko"], "", "unknown system 'moko'"),
        (["moco", "moco"], "", "--systems names moco twice"),
        (["{own}"], "backbone: resnet18\n", "sets backbone, which all systems of a comparison share"),
        (["{own}"], "quue: 5\n", "has no setting 'quue'; did you mean queue"),
    ],
)
def test_rows_that_are_wrong(tmp_path, systems, text, words):
    own = tmp_path / "own.yaml"
    own.write_text(text)
    with pytest.raises(UserError, match=words):
        read_contenders([name.format(own=own) for name in systems], {})


@pytest.mark.parametrize(("early", "after", "seconds"), [(1.0, 2.0, 31.0), (3.0, 1.0, 20.0), (5.0, 7.0, 1.0)])
def test_epochs_in_equal_time_are_the_most_that_fit(early, after, seconds):
    def of(epochs):
        return min(max(round(epochs / 10), 4), epochs // 2)

    fits = [e for e in range(1, 200) if of(e) * early + (e - of(e)) * after <= seconds]
    assert epochs_in(seconds, Pace(early, after), of) == max([1, *fits])


def test_equal_time_is_a_whole_number_of_epochs_by_the_measured_pace(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "TURNS", 2)
    images = Images(str(photos), None, 0, 0.2)
    rows = make_rows(images, ["moco", "pcl", "random"], SMALL, "small-v2", 0)
    said = []
    found = with_epochs(rows, Budget(minutes=0.01), tmp_path, 1, said.append)
    known = json.loads((tmp_path / "timing.json").read_text())
    assert len(known) == 2, "an untrained encoder takes no time"
    assert all(pace["warm_up"] > 0 and pace["after"] > 0 for pace in known.values())
    assert found[2].settings["epochs"] == 1
    for cell, pace in zip(found, (Pace(**p) for p in known.values()), strict=False):
        epochs, source = cell.settings["epochs"], open_images(images, 0).train
        assert epochs == 1 or pace.total(epochs, warm_up(cell, source, epochs)) <= 0.6
        assert pace.total(epochs + 1, warm_up(cell, source, epochs + 1)) > 0.6
    monkeypatch.setattr(budget, "time_once", None)  # what is known is not timed again
    assert with_epochs(rows, Budget(minutes=0.01), tmp_path, 1, said.append) == found
    assert [line.split(":")[0] for line in said[1:3]] == ["moco", "pcl"]


def test_the_pace_is_that_of_the_least_disturbed_turn(photos, tmp_path, monkeypatch):
    turns = iter([Pace(3.0, 5.0), Pace(30.0, 4.0), Pace(2.5, 40.0)])
    monkeypatch.setattr(budget, "time_once", lambda cell, source: next(turns))
    rows = make_rows(Images(str(photos), None, 0, 0.2), ["moco"], SMALL, "small-v2", 0)
    assert budget.measure(rows, tmp_path, 1, lambda _: None) == {"moco": Pace(2.5, 4.0)}


def test_what_comes_once_or_every_few_epochs_is_timed_as_in_a_long_training(photos, tmp_path, monkeypatch):
    asked = {}

    def train(source, out, *, epochs, **settings):
        # Start-up, the first pass and the clusters of the record take a second more; every fifth epoch takes five.
        asked.update(settings, epochs=epochs)
        seconds = [2.0, 1.0, 2.0, *(6.0 if i % 5 == 0 else 1.0 for i in range(epochs - 4)), 2.0]
        metrics = [{"seconds": 0.0, "cpu_seconds": x} for x in seconds]
        return SimpleNamespace(settings=SimpleNamespace(device="cpu"), metrics=metrics)

    monkeypatch.setattr(budget, "train", train)
    images = Images(str(photos), None, 0, 0.2)
    (cell,) = make_rows(images, ["pcl"], {**SMALL, "batch_size": 2}, "small-v2", 0)
    source = open_images(images, 0).train
    pace = budget.time_once(cell, source)
    timed = asked["epochs"] - 4
    assert (timed - 1) * len(source) < 100 * 2 <= timed * len(source), "a hundred steps"
    assert pace == Pace(1.0, pytest.approx(1.0 + 5.0 * math.ceil(timed / 5) / timed))
    (cell,) = make_rows(images, ["deepcluster"], SMALL, "small-v2", 0)
    budget.time_once(cell, source)
    assert asked["reassign"] > 1, "new labels every few epochs, which `auto` would not choose in so short a training"


def test_rows_that_do_the_same_work_are_timed_once(photos, tmp_path, monkeypatch):
    timed = []
    monkeypatch.setattr(budget, "time_once", lambda cell, source: timed.append(cell.row) or Pace(1.0, 2.0))
    (base,) = make_rows(Images(str(photos), None, 0, 0.2), ["moco"], SMALL, "small-v2", 0)
    changes = [{}, {"lr": 0.5}, {"tau": 0.05, "epochs": 7}, {"queue": 32}, {"queue": 32, "twin_momentum": 0.5}]
    rows = [replace(base, row=f"{i}", settings={**base.settings, **change}) for i, change in enumerate(changes)]
    assert len({*budget.measure(rows, tmp_path, 1, lambda _: None)}) == len(rows)
    assert timed == ["0", "3"] * budget.TURNS


def test_scores_that_the_images_do_not_allow_are_refused_before_training(photos, tmp_path):
    words = "fewer than two classes of .* have 16 training images, which the score shot_16 needs; give --scores knn,ami"
    with pytest.raises(UserError, match=words):
        compare(str(photos), tmp_path / "out", ["moco"], [0], epochs=1, scores=["knn", "ami", "shot_16"], **SMALL)
    assert not (tmp_path / "out").exists()


def test_a_budget_is_epochs_or_minutes():
    assert Budget(epochs=3).words == "3 epochs each"
    assert Budget(minutes=1.5).words == "1.5 minutes each"
    for wrong in ({}, {"epochs": 3, "minutes": 1.0}):
        with pytest.raises(UserError, match="either --epochs N or --minutes T"):
            Budget(**wrong)
    with pytest.raises(UserError, match="--minutes -1"):
        Budget(minutes=-1)


def result(row, seed, knn, ami=0.5, seconds=10.0):
    return {
        "row": row,
        "system": row.upper(),
        "seed": seed,
        "scores": {"test": {"knn": knn, "ami": ami}},
        "curve": [{"epoch": e, "seconds": 2.0 * e, "cpu_seconds": 1.0 * e, "knn": knn * e / 4} for e in (2, 4)],
        "costs": {"epochs": 4, "seconds": seconds, "cpu_seconds": seconds / 2, "memory": 2.0**20 * (1 + seed)},
    }


KNN = {"a": [0.50, 0.52, 0.54, 0.50, 0.53], "b": [0.55, 0.56, 0.60, 0.53, 0.59], "random": [0.1] * 5}


def summary():
    results = {row: [result(row, seed, knn) for seed, knn in enumerate(values)] for row, values in KNN.items()}
    return summarise(results, "test", ["knn", "ami"], "a", ["random"])


def test_the_table_by_hand():
    found = summary()
    a, b, random = found["rows"]
    assert a["pairs"] == {}
    assert b["scores"]["knn"]["mean"] == pytest.approx(statistics.fmean(KNN["b"]))
    assert b["scores"]["knn"]["std"] == pytest.approx(statistics.stdev(KNN["b"]))
    assert b["scores"]["knn"]["seeds"] == dict(enumerate(KNN["b"]))
    differences = [y - x for x, y in zip(KNN["a"], KNN["b"], strict=True)]
    pair = b["pairs"]["knn"]
    assert (pair["mean"], pair["positive"], pair["seeds"], pair["leads"]) == (lead(differences).mean, 5, 5, True)
    assert pair["p_holm"] == pair["p"] == t_test(differences), "a bound is no contender, so there is one pair"
    assert "p_holm" not in random["pairs"]["knn"]
    assert random["pairs"]["knn"]["behind"]
    assert b["pairs"]["ami"]["p"] == 1, "no difference"
    assert b["costs"]["seconds_per_epoch"] == 2.5
    assert b["costs"]["memory"] == 5 * 2**20
    assert [(p["epoch"], p["cpu_seconds"]) for p in b["curve"]] == [(2, 2.0), (4, 4.0)]
    assert b["curve"][0]["mean"] == pytest.approx(statistics.fmean(KNN["b"]) / 2)
    assert [cells[0] for cells in cells_of(found)] == ["b", "a", "random"], "best first, bounds last"
    assert cells_of(found)[0] == ("b", "4", "56.6 ± 2.9", "0.500 ± 0.000")
    assert pair_text("knn", pair) == "+4.8 ± 1.3, ahead for 5 of 5 seeds: lead"


def test_a_lead_takes_five_seeds():
    results = {row: [result(row, seed, knn) for seed, knn in enumerate(values[:4])] for row, values in KNN.items()}
    _, b, _ = summarise(results, "test", ["knn"], "a", [])["rows"]
    assert pair_text("knn", b["pairs"]["knn"]) == "+4.5 ± 1.3, ahead for 4 of 4 seeds"
    single = {row: [result(row, 0, values[0])] for row, values in KNN.items()}
    _, b, _ = summarise(single, "test", ["knn"], "a", [])["rows"]
    assert b["pairs"] == {}
    assert b["scores"]["knn"]["std"] is None


def test_csv_and_latex():
    found = summary()
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert len(rows) == 3 * 2 * 5
    assert [float(r["value"]) for r in rows if r["system"] == "b" and r["score"] == "knn"] == KNN["b"]
    found["rows"][1]["name"] = "b_2 & c"
    lines = to_latex(found).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrr}"
    assert r"b\_2 \& c & 4 & 56.6 $\pm$ 2.9 & 0.500 $\pm$ 0.000 \\" in lines


def test_curves_of_all_systems_in_one_picture():
    over_time, over_epochs = curves(summary())
    assert [line.name for line in over_time.lines] == ["a", "b", "random"]
    assert over_time.lines[0].x == pytest.approx([2 / 60, 4 / 60])
    assert over_epochs.lines[0].x == [2, 4]
    assert over_epochs.lines[0].y == pytest.approx([50 * statistics.fmean(KNN["a"]), 100 * statistics.fmean(KNN["a"])])


def test_the_papers_rows_of_the_systems():
    tables = from_paper(["moco"])
    assert [row[0] for row in tables[0]["rows"]] == ["MoCo", "MoCo v2"]
    assert tables[0]["rows"][0][-3:] == ("60.6", "79.2*", "48.9*")


def test_a_cell_is_named_after_what_is_trained():
    images = Images("photos", None, 0, 0.1)
    cell = Cell("a", "moco", "small-v2", {"lr": 0.1}, 3, images, on_test=True)
    assert cell.name.startswith("a-")
    assert cell.name.endswith("-3")
    assert replace(cell, on_test=False).name == cell.name, "what is scored does not change what is trained"
    for change in ({"settings": {"lr": 0.2}}, {"images": replace(images, limit=5)}, {"recipe": "small-v1"}):
        assert replace(cell, **change).name != cell.name


def test_scores_have_titles_and_protocols():
    assert set(USUAL) <= set(SCORES)
    assert SCORES["knn"].text(0.71249) == "71.2"
    assert SCORES["ami"].text(-0.00001, signed=True) == "+0.000"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epochs", "2", "--minutes", "3"], "either --epochs N or --minutes T"),
        (["--epochs", "2", "--scores", "knn,acc"], "unknown score 'acc'"),
        (["--epochs", "2", "--scores", "ami"], "--scores must include knn"),
        (["--epochs", "2", "--seeds", "1,1"], "different numbers"),
        (["--epochs", "2", "--held-out", "1.5"], "--held-out 1.5 must be between 0 and 1"),
        (["--epochs", "2", "--baseline", "byol"], "--baseline byol is not one of the systems: moco, pcl"),
        (["--epochs", "2", "--lr", "-1"], "setting lr is -1"),
    ],
)
def test_mistakes_are_said_before_anything_is_written(photos, tmp_path, capsys, arguments, words):
    out = tmp_path / "out"
    assert main(["compare", str(photos), "--systems", "moco,pcl", "--out", str(out), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_a_comparison_from_training_to_its_page(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(running.subprocess, "Popen", Module)
    systems, out = ["moco", "pcl"], tmp_path / "out"
    given = {**SMALL, "scores": ["knn"], "recipe": "small-v2", "warmup_epochs": 1, "held_out": 0.2}
    found = compare(str(photos), out, systems, [3], epochs=2, **given)
    assert [row["name"] for row in found["rows"]] == systems
    assert found["rows"][1]["costs"]["epochs"] == 2
    assert [point["epoch"] for point in found["rows"][1]["curve"]] == [1, 2]
    assert json.loads((out / "compare.json").read_text())["baseline"] == "moco"
    assert "<h2>Costs</h2>" in (out / "compare.html").read_text()
    assert "moco" in capsys.readouterr().out
    (run,) = (out / "runs").glob("pcl-*")
    assert load(run).settings.seed == 3
    assert load(run).options["warmup_epochs"] == 1

    trained = (run / "encoder.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(running, "_Process", None)  # nothing is left to do
    assert compare(str(photos), out, systems, [3], epochs=2, quiet=True, **given) == found

    images = Images(str(photos), None, 0, 0.2)
    settings = {**SMALL, "warmup_epochs": 1, "method": "pcl", "epochs": 2}
    cell = Cell("pcl", "pcl", "small-v2", settings, 3, images, on_test=True)
    assert cell.run(out) == run
    more = run_cell(cell, ["knn", "ami"], out)
    assert more["scores"]["test"]["knn"] == found["rows"][1]["scores"]["knn"]["mean"]
    assert set(more["scores"]["test"]) == {"knn", "ami"}
    assert (run / "encoder.safetensors").stat().st_mtime_ns == trained, "a finished cell is never trained twice"
    train, held_out, test, _ = open_images(images, 3)
    parts = [set(part.names) for part in (train, held_out, test)]
    assert not parts[0] & parts[1]
    assert not parts[2] & (parts[0] | parts[1])
    assert set(load(run).images[0]) == parts[0]

    for row, commit in (("moco", "before"), ("pcl", "after")):
        (path,) = (out / "cells").glob(f"{row}-*.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "git": commit}))
    again = compare(str(photos), out, systems, [3], epochs=2, quiet=True, **given)
    assert again["git"] == "before, after", "every commit that something was trained with"

    path.write_text("{")
    with pytest.raises(UserError, match="is damaged; delete it"):
        compare(str(photos), out, systems, [3], epochs=2, quiet=True, **given)


@pytest.mark.slow
def test_a_training_that_fails_is_named_and_the_others_are_kept(photos, tmp_path):
    own = tmp_path / "wild.yaml"
    own.write_text(yaml.safe_dump({"method": "moco", "lr": 9999.0, "weight_decay": 999.0}))
    out, given = tmp_path / "out", {**SMALL, "scores": ["knn"], "recipe": "small-v2", "quiet": True}
    with pytest.raises(UserError, match=r"1 of 2 trainings failed; wild-.*NaN"):
        compare(str(photos), out, ["moco", str(own)], [0], epochs=4, **given)
    assert [path.name.split("-")[0] for path in (out / "cells").iterdir()] == ["moco"]


def test_results_that_are_not_there(tmp_path):
    cell = Cell("a", "moco", "small-v2", {}, 3, Images("photos", None, 0, 0.1), on_test=True)
    assert read_result(cell, tmp_path) == {}
