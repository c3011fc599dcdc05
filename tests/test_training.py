"""The training loop: it is algorithm 1, with the settings' terms, rates and precision."""

import json
import math

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file

import protonce
from conftest import SMALL
from protonce import assembly, checkpoints
from protonce.data.loader import Loader
from protonce.devices import ScaledPrecision
from protonce.encoder import build
from protonce.errors import UserError
from protonce.methods.pcl import PCL


def test_each_step_gets_both_views_of_its_own_images_anew_in_each_epoch(photos, tmp_path, monkeypatch):
    batches = []
    m_step = PCL.m_step
    monkeypatch.setattr(PCL, "m_step", lambda self, b, state: batches.append(b) or m_step(self, b, state))
    run = protonce.train(photos, tmp_path / "r", epochs=2, quiet=True, **SMALL)
    loader = run.loader(photos)
    assert len(batches) == 6
    for epoch in (0, 1):
        order = torch.randperm(48, generator=protonce.randomness.generator(0, "order", epoch))
        for step, samples in enumerate(loader.samples(order, epoch, 16)):
            batch = batches[3 * epoch + step]
            assert torch.equal(batch.index, order[16 * step : 16 * step + 16])
            assert all(torch.equal(a, b) for a, b in zip(batch.views, loader.views.train(samples), strict=True))
            assert (batch.progress.epoch, batch.progress.step) == (epoch, step)
            assert (batch.progress.done, batch.progress.total) == (3 * epoch + step, 6)
            assert batch.labels is None
    assert not torch.equal(batches[0].index, batches[3].index)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "moco"}, ["instance", "instance"]),
        ({"terms": "prototypes", "warmup_epochs": 0}, ["prototype", "prototype"]),
        ({"terms": "prototypes", "warmup_epochs": 1}, ["instance", "prototype"]),
        ({"terms": "both", "warmup_epochs": 0}, ["instance+prototype", "instance+prototype"]),
        ({"terms": "both", "warmup_epochs": 1}, ["instance", "instance+prototype"]),
    ],
)
def test_the_five_rows_of_appendix_a_are_settings(photos, tmp_path, settings, expected):
    protonce.train(photos, tmp_path / "r", epochs=2, quiet=True, **settings, **SMALL)
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert ["+".join(t for t in ("instance", "prototype") if t in line) for line in lines] == expected


def test_e_step_features_are_the_twins_in_eval_mode(photos, tmp_path, monkeypatch):
    """And the optimizer has the settings' rate, momentum and decay."""
    seen = []
    e_step = PCL.e_step

    def look(self, epoch, features):
        (samples,) = loader[0].plain(48)
        views = loader[0].views.plain(samples)
        twin = build(self.settings)
        twin.load_state_dict(self.momentum.state_dict())
        with torch.no_grad():
            expected, pooled = twin.eval()(views), twin.features(views)
        v_ = features()
        torch.testing.assert_close(v_, expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(features.backbone(), pooled, atol=1e-5, rtol=1e-4)
        assert torch.equal(features(), v_), "pooled features are computed with the same embeddings"
        assert self.momentum.training, "the keys of the M-step see batch statistics"
        seen.append(epoch)
        return e_step(self, epoch, features)

    loader, groups = [], []
    step = torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD, "step", lambda self, *a: groups.append({**self.param_groups[0], "params": 0}) or step(self, *a)
    )
    monkeypatch.setattr(PCL, "e_step", look)
    monkeypatch.setattr(assembly, "Loader", lambda *a, **k: loader.append(Loader(*a, **k)) or loader[0])
    settings = {**SMALL, "sgd_momentum": 0.8, "weight_decay": 0.01, "lr": 0.5, "epochs": 2, "warmup_epochs": 0}
    protonce.train(photos, tmp_path / "r", quiet=True, **settings)
    assert seen == [0, 1, 2], "two epochs, and the prototypes of the run"
    assert {(g["momentum"], g["weight_decay"]) for g in groups} == {(0.8, 0.01)}
    expected = [0.25 * (1 + math.cos(math.pi * step / 6)) for step in range(6)]
    assert [g["lr"] for g in groups] == pytest.approx(expected)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_good_epochs(photos, tmp_path, monkeypatch):
    m_step = PCL.m_step

    def diverge(self, batch, state):
        loss, terms = m_step(self, batch, state)
        bad = math.inf if batch.progress.done == 4 else 1.0
        return loss * bad, terms

    monkeypatch.setattr(PCL, "m_step", diverge)
    words = r"the loss became NaN or infinite by step 3 of 3 of epoch 2; start a new run with a smaller lr"
    with pytest.raises(UserError, match=words):
        protonce.train(photos, tmp_path / "r", epochs=3, quiet=True, **SMALL)
    assert checkpoints.load(tmp_path / "r")["epoch"] == 1


def test_identical_images_train(tmp_path, capsys):
    """Nothing to tell apart: one cluster, said once, and a finite loss."""
    images = np.full((40, 16, 16), 90, dtype=np.uint8)
    run = protonce.train(images, tmp_path / "r", epochs=2, warmup_epochs=0, **SMALL)
    assert capsys.readouterr().err.count("requested 8 clusters but found only 1 distinct features") == 1
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["clusters"] == [1, 1]
    assert all(math.isfinite(line["loss"]) for line in lines)


def test_scaled_gradients_are_unscaled_before_a_system_sees_them(photos, tmp_path, monkeypatch):
    """Without an encoder in half precision the run is the same: the scale is a power of two."""
    settings = {**SMALL, "epochs": 2, "warmup_epochs": 1, "quiet": True, "clip_gradients": 0.5}
    norms = []

    class Look(PCL):
        def after_backward(self, progress):
            norms.append(torch.cat([p.grad.flatten() for p in self.query.parameters()]).norm())

    plain = protonce.train(photos, tmp_path / "plain", method=Look, **settings)
    scaled = Fabric(accelerator="cpu", devices=1, plugins=[ScaledPrecision("16-mixed", "cpu")])
    monkeypatch.setattr(assembly, "launch", lambda *_: scaled)
    half = protonce.train(photos, tmp_path / "half", method=Look, **settings)
    assert len(norms) == 12
    torch.testing.assert_close(norms[:6], norms[6:])
    torch.testing.assert_close(
        load_file(plain.path / "encoder.safetensors"), load_file(half.path / "encoder.safetensors")
    )
    assert checkpoints.load(half.path)["precision"]["scale"] == 65536.0
