"""`protonce tune`: the trials of a system, and the choice among them."""

from dataclasses import replace

import pytest
import yaml

from protonce import tune as module
from protonce.cli import main
from protonce.compare.cells import write_result
from protonce.compare.contenders import read_contenders
from protonce.errors import UserError
from protonce.methods.registry import SYSTEMS
from protonce.tune import tune

SMALL = {
    "backbone": "resnet10t",
    "width": 4,
    "image_size": 16,
    "batch_size": 16,
    "clusters": [3, 6],
    "recipe": "small-v2",
}


@pytest.fixture
def trained(monkeypatch):
    """The cells that are asked for, which have scores by their learning rate and seed instead of being trained."""
    cells = []

    def train_all(asked, scores, out, machine, say):
        for cell in asked:
            cells.append(cell)
            # The first seed prefers a high rate; over both seeds the rate as it is wins.
            lr = cell.settings.get("lr", 0.06)
            knn = {0.06: 0.60, 0.12: 0.61, 0.03: 0.5}.get(lr, 0.4) - (0.1 if lr == 0.12 and cell.seed == 101 else 0)
            knn -= 0.3 * (set(cell.settings) & {"tau", "twin_momentum"} != set())
            write_result(cell, out, {"scores": {"held_out": {**dict.fromkeys(scores, 0.2), "knn": knn}}})

    monkeypatch.setattr(module, "train_all", train_all)
    return cells


def test_all_trials_on_one_seed_the_best_two_on_all(photos, tmp_path, trained):
    found = tune(str(photos), tmp_path / "out", "moco", seeds=[100, 101], epochs=4, quiet=True, **SMALL)
    assert [cell.seed for cell in trained] == [100] * 6 + [101] * 2
    assert not any(cell.on_test for cell in trained), "the test images are not read"
    assert [cell.settings.get("lr") for cell in trained[6:]] == [0.12, None], "the best two of the first seed"
    assert found["chosen"] == {}, "the mean over both seeds decides"
    assert [trial["finalist"] for trial in found["trials"]] == [True, False, True, False, False, False]
    assert found["trials"][2]["scores"]["knn"]["mean"] == pytest.approx((0.61 + 0.51) / 2)
    assert yaml.safe_load((tmp_path / "out" / "moco.yaml").read_text()) == {"method": "moco"}


def test_what_is_chosen_is_a_file_for_compare(photos, tmp_path, trained, capsys):
    found = tune(str(photos), tmp_path / "out", "moco", seeds=[100], epochs=4, **SMALL)
    assert found["chosen"] == {"lr": 0.12}
    (row,) = read_contenders([str(tmp_path / "out" / "moco.yaml")], {"width": 4})
    assert row.settings == {"width": 4, "method": "moco", "lr": 0.12}
    assert "lr 0.12" in capsys.readouterr().out


def test_the_edges_of_what_was_tried(photos, tmp_path, trained, capsys):
    found = tune(str(photos), tmp_path / "out", "moco", seeds=[100], epochs=4, **SMALL)
    # Rates are 0.03, 0.06 and 0.12; tau is 0.1 or 0.2; the twin has a faster and a slower one on its sides.
    assert found["at_edges"] == {"lr": 0.12, "tau": 0.2}
    assert "at the edge of what was tried: tau 0.2, lr 0.12" in " ".join(capsys.readouterr().out.split())


def test_epochs_of_equal_time_are_no_choice(photos, tmp_path, trained):
    tune(str(photos), tmp_path / "out", "moco", seeds=[100], epochs=4, quiet=True, **SMALL)
    longer = [replace(cell, settings={**cell.settings, "epochs": 4 + i}) for i, cell in enumerate(trained)]
    assert {name for values in module.trial_values(longer) for name in values} == {"lr", "tau", "twin_momentum"}


def test_edges_of_lists_and_words():
    trials = [
        {"clusters": [10, 20], "concentration": "estimated", "on": True, "drops": []},
        {"clusters": [20, 40], "concentration": "fixed", "on": False, "drops": [0.5]},
        {"clusters": [5, 10], "concentration": "estimated", "on": True, "drops": [0.7]},
    ]
    found = [list(module.at_edges(trials, chosen)) for chosen in trials]
    assert found == [["drops"], ["clusters"], ["clusters", "drops"]], "words and switches have no edge"


def test_trials_that_are_wrong(photos, tmp_path, capsys):
    with pytest.raises(UserError, match="--trials 7 must be from 1 to 6, the trials of moco"):
        tune(str(photos), tmp_path / "out", "moco", trials=7, epochs=2, quiet=True, **SMALL)
    assert main(["tune", str(photos), "--system", "moco", "--out", str(tmp_path / "out")]) == 2
    assert "either --epochs N or --minutes T" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_six_different_trials(name, photos):
    from protonce.compare.cells import Images
    from protonce.compare.comparison import make_rows

    settings = {key: value for key, value in SMALL.items() if key != "recipe"}
    (base,) = make_rows(Images(str(photos), None, 0, 0.2), [name], settings, "small-v2", 0)
    if name == "random":
        with pytest.raises(UserError, match="from 1 to 1, the trials of random"):
            module.make_trials(base, 6)
        return
    cells = list(module.make_trials(base, 6).values())
    assert cells[0].settings == base.settings
    assert len({cell.name.split("-", 2)[-1] for cell in cells}) == 6
