"""The untrained encoder: its weights at the end are those of the start, and a run of it is a run like any other."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import protonce
from conftest import SMALL, train_until
from protonce.encoder import build
from protonce.evaluate.protocols import evaluate
from protonce.methods.random import Random
from protonce.report.page import write_report

pytestmark = pytest.mark.usefixtures("quick_page")


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "adamw"])
def test_the_weights_are_those_of_the_start_to_the_byte(photos, tmp_path, monkeypatch, optimizer):
    steps = []
    m_step = Random.m_step
    monkeypatch.setattr(Random, "m_step", lambda *args: steps.append(1) or m_step(*args))
    settings = {**SMALL, "epochs": 50, "method": "random", "optimizer": optimizer, "quiet": True}
    run = protonce.train(photos, tmp_path / "r", **settings)
    assert len(steps) == 1, "it costs next to nothing"
    assert len(run.metrics) == run.settings.epochs == 1
    start, end = build(run.settings).state_dict(), load_file(run.path / "encoder.safetensors")
    for name, value in start.items():
        assert torch.equal(value, end[f"query.{name}"]), name
        assert torch.equal(value, end[f"momentum.{name}"]), name


def test_health_page_and_evaluation_bear_it(photos, tmp_path):
    run = protonce.train(photos, tmp_path / "r", method="random", quiet=True, **SMALL)
    assert run.health.state == "untrained"
    assert run.health.words.startswith("untrained: initial weights; effective rank ")
    assert run.metrics[0]["loss"] == 0
    assert "effective_rank" in run.metrics[0]
    assert run.health.words in write_report(run, quiet=True).read_text()
    assert 0 <= evaluate(run, "knn", quiet=True)["metrics"]["accuracy"] <= 1


def test_a_run_resumes_to_the_byte_and_starts_from_weights(photos, tmp_path, monkeypatch):
    options = {**SMALL, "method": "random", "epochs": 9, "quiet": True}
    whole = protonce.train(photos, tmp_path / "whole", **options)
    train_until((0, 1), monkeypatch, photos, tmp_path / "stopped", options)
    stopped = protonce.train(photos, tmp_path / "stopped", resume=True, **options)
    for name in ("encoder.safetensors", "prototypes.npz"):
        assert (whole.path / name).read_bytes() == (stopped.path / name).read_bytes(), name
    trained = protonce.train(photos, tmp_path / "moco", **{**options, "method": "moco", "epochs": 1})
    frozen = protonce.train(photos, tmp_path / "frozen", init=str(trained.path), **options)
    ours, theirs = (load_file(run.path / "encoder.safetensors") for run in (frozen, trained))
    for name in theirs:
        if name.startswith("query."):
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
