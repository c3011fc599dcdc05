"""TensorBoard's curves: those of metrics.jsonl, and after an interruption those of an uninterrupted run."""

import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import protonce
from conftest import SMALL
from protonce import checkpoints
from protonce.errors import UserError


def points(run):
    """Every point of every event file, double ones too: nothing is purged on reading."""
    folder = str(run.path / "tensorboard")
    events = EventAccumulator(folder, size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return {tag: values for tag, values in found.items() if "seconds" not in tag}


def test_curves_are_cut_back_to_the_checkpoint(photos, tmp_path, monkeypatch):
    settings = {**SMALL, "epochs": 3, "warmup_epochs": 1, "quiet": True, "tensorboard_every": 2}
    whole = protonce.train(photos, tmp_path / "whole", **settings)
    expected = points(whole)
    assert [step for step, _ in expected["step/loss"]] == [2, 4, 6, 8]  # of 3 epochs of 3 steps
    assert [step for step, _ in expected["step/prototype"]] == [4, 6, 8]
    for name, tag in (("loss", "epoch/loss"), ("effective_rank", "epoch/effective_rank")):
        told = [(3 * line["epoch"], pytest.approx(line[name], rel=1e-5)) for line in whole.metrics]
        assert expected[tag] == told
    assert expected["epoch/largest_cluster/1"] == [(3 * m["epoch"], m["largest_cluster"][1]) for m in whole.metrics]

    save = checkpoints.save

    def save_and_go_on_for_a_step(folder, epoch, *rest):
        if seen and seen[-1] == "stop":
            raise KeyboardInterrupt
        if (epoch, rest[-1].step if rest[-1] else 0) == (1, 1):
            seen.append("stop")  # at the next one, whose steps are written and not in a checkpoint
        save(folder, epoch, *rest)

    seen = []
    monkeypatch.setattr(checkpoints, "save", save_and_go_on_for_a_step)
    with pytest.raises(KeyboardInterrupt):
        protonce.train(photos, tmp_path / "halves", checkpoint_minutes=0, **settings)
    monkeypatch.undo()
    halves = protonce.train(photos, tmp_path / "halves", resume=True, **settings)
    assert points(halves) == expected


def test_without_the_extra(photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match="tensorboard is not installed; pip install"):
        protonce.train(photos, tmp_path / "run", epochs=1, quiet=True, tensorboard_every=1, **SMALL)
    assert not (tmp_path / "run").exists()
