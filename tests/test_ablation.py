"""The five rows of appendix A: what each trains, that they differ, and that what is done is not done again."""

import json
import shutil

import pytest

from conftest import SMALL
from protonce.ablation import FOLDERS, ROWS, run_ablation
from protonce.cli import main
from protonce.errors import UserError
from protonce.evaluate import protocols
from protonce.paper import ABLATION
from protonce.run import load

QUICK = {"epochs": 2, "warmup_epochs": 1, "draws": 1, "share": 0.3, "quiet": True, **SMALL}


def test_five_rows_and_none_is_made_twice(photos, tmp_path, monkeypatch, capsys):
    rows = run_ablation(str(photos), tmp_path, **QUICK)
    assert [row.name for row in rows] == list(ABLATION) == list(ROWS)
    assert json.loads((tmp_path / "ablation.json").read_text())["rows"][0]["name"] == "instance only"
    runs = {name: load(tmp_path / folder) for name, folder in FOLDERS.items()}
    # The loss of the last epoch says which terms were trained; that of the first whether there was a warm-up.
    expected = {
        "instance only": ({"instance"}, {"instance"}),
        "proto only (w/o warm-up)": ({"prototype"}, {"prototype"}),
        "proto only (w/ warm-up)": ({"instance"}, {"prototype"}),
        "instance + proto (w/o warm-up)": ({"instance", "prototype"}, {"instance", "prototype"}),
        "instance + proto (w/ warm-up)": ({"instance"}, {"instance", "prototype"}),
    }
    for name, run in runs.items():
        first, last = ({"instance", "prototype"} & record.keys() for record in run.metrics)
        assert (first, last) == expected[name], name
    assert len({run.encoder_hash for run in runs.values()}) == 5
    for row in rows:
        kept = runs[row.name].evaluations
        assert row.fine_tuning == kept["semisup"]["metrics"]["top5@30%"]["mean"]
        assert row.linear == kept["linear"]["metrics"]["top1"]

    monkeypatch.setattr(protocols, "RUNNERS", {})
    assert run_ablation(str(photos), tmp_path, **{**QUICK, "quiet": False}) == rows
    printed = capsys.readouterr().out
    assert "75.3" in printed
    assert "instance + proto (w/ warm-up)" in printed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--warmup-epochs", "0"], "two rows of the ablation are about a warm-up"),
        (["--epochs", "1"], "rows would not differ"),
        (["--terms", "both"], "unrecognized arguments: --terms"),
    ],
)
def test_what_would_compare_nothing_is_refused(options, sentence, photos, tmp_path, capsys):
    small = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value).strip("[]"))]
    arguments = ["ablation", str(photos), "--out", str(tmp_path / "a"), "--epochs", "2", *small, *options]
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_other_test_images_are_other_results(photos, tmp_path):
    """And labels are looked at before anything is trained."""
    rows = run_ablation(str(photos), tmp_path / "a", **QUICK)
    shutil.copytree(photos / "slope0", tmp_path / "test" / "slope0")
    shutil.copytree(photos / "slope1", tmp_path / "test" / "slope1")
    again = run_ablation(str(photos), tmp_path / "a", test=str(tmp_path / "test"), **QUICK)
    assert len(again) == len(rows) == 5
    for folder in FOLDERS.values():
        kept = load(tmp_path / "a" / folder).evaluations
        assert [kept[name]["data"]["test"]["images"] for name in ("linear", "semisup")] == [32, 32]
    for bad in ({"share": 5}, {"draws": 0}, {"test": str(photos)}):
        with pytest.raises(UserError):
            run_ablation(str(photos), tmp_path / "b", **{**QUICK, **bad})
    with pytest.raises(UserError, match="has no labels"):
        run_ablation(str(photos / "slope0"), tmp_path / "b", **{**QUICK, "clusters": [2, 3], "batch_size": 8})
    assert not (tmp_path / "b").exists()


def test_terms_are_not_for_the_caller(photos, tmp_path):
    with pytest.raises(UserError, match="what the ablation varies"):
        run_ablation(str(photos), tmp_path, terms="both", **QUICK)
