"""An E-step without a pass over the images: of an average of the keys that each image had."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import protonce
from conftest import SMALL, make_system, train_until
from processes import run_on_ranks
from protonce.context import Progress
from protonce.memory import EMPTY, KeyAverage
from protonce.methods.base import Batch
from two_systems import network

BANK = {**SMALL, "epochs": 4, "warmup_epochs": 1, "e_step_features": "bank", "quiet": True}


def test_the_average_is_that_of_a_loop():
    draw = torch.Generator().manual_seed(0)
    bank, kept, since = KeyAverage(6, 3), {}, {}
    for images in ([0, 1, 2], [3, 0, 4], [0, 3, 1]):
        bank.grow_older()
        since = {image: age + 1 for image, age in since.items()}
        keys = F.normalize(torch.randn(3, 3, generator=draw), dim=1)
        bank.update(torch.tensor(images), keys, 0.75)
        for image, key in zip(images, keys, strict=True):
            kept[image] = key if image not in kept else 0.75 * kept[image] + 0.25 * key
            since[image] = 0
    assert not bank.complete
    for image, average in kept.items():
        torch.testing.assert_close(bank.average[image], average)
        torch.testing.assert_close(bank.features[image], average / average.norm())
    assert bank.age.tolist() == [since.get(image, EMPTY) for image in range(6)]
    bank.update(torch.tensor([5]), F.normalize(torch.ones(1, 3), dim=1), 0.75)
    assert bank.complete


@pytest.mark.parametrize("queue_push", ["before", "after"])
def test_the_keys_of_every_step_are_averaged(monkeypatch, queue_push):
    """And no gradient, and no loss, depends on it."""
    from protonce.methods import moco

    system = make_system("pcl", e_step_features="bank", bank_momentum=0.5, queue_push=queue_push, batch_size=16)
    plain = make_system("pcl", queue_push=queue_push, batch_size=16)
    encode, seen = moco.encode_keys, []
    monkeypatch.setattr(moco, "encode_keys", lambda *args: seen.append(encode(*args)) or seen[-1])
    expected = torch.zeros(48, system.query.dim)
    for step, index in enumerate(torch.arange(32).split(16)):
        batch = Batch((torch.rand(16, 3, 16, 16), torch.rand(16, 3, 16, 16)), index, Progress(0, step, 3, 4))
        loss, _ = system(batch, None)
        expected[index] = seen[-1]
        torch.testing.assert_close(loss, plain(batch, None)[0])
        for each in (system, plain):
            each.after_step(batch.progress)
    torch.testing.assert_close(system.bank.average, expected)
    assert system.bank.age.tolist() == [0] * 32 + [EMPTY] * 16
    assert "bank.average" in system.state_dict()
    assert plain.bank is None


def test_clusters_are_those_of_the_bank_and_wait_until_it_has_all_images():
    from protonce.prototypes import cluster

    system = make_system("pcl", e_step_features="bank", warmup_epochs=0, epochs=3)

    def no_pass():
        raise AssertionError("a pass over the images")

    draw = torch.Generator().manual_seed(1)
    keys = F.normalize(torch.randn(48, system.query.dim, generator=draw), dim=1)
    system.bank.update(torch.arange(40), keys[:40], 0.5)
    assert system.e_step(0, no_pass) is None
    system.bank.update(torch.arange(40, 48), keys[40:], 0.5)
    found = system.e_step(1, no_pass)
    for ours, expected in zip(found, cluster(keys, system.settings, 1), strict=True):
        assert torch.equal(ours.assignment, expected.assignment)
    passed = F.normalize(torch.randn(48, system.query.dim, generator=draw), dim=1)
    last = system.e_step(3, lambda: passed)  # after training: the prototypes that new images are assigned to
    for ours, expected in zip(last, cluster(passed, system.settings, 3), strict=True):
        assert torch.equal(ours.assignment, expected.assignment)


def test_a_run_makes_a_pass_only_where_it_must(photos, tmp_path, monkeypatch):
    """The first E-step of the record has no bank yet; at the end V' gives the run's prototypes, and judges the bank."""
    from protonce.assembly import MomentumFeatures

    passes, compute = [], MomentumFeatures._compute
    monkeypatch.setattr(MomentumFeatures, "_compute", lambda self: passes.append(1) or compute(self))
    run = protonce.train(photos, tmp_path / "run", **BANK)
    assert len(passes) == 3  # before the first epoch, and after the first, tenth, ... and last, of which there are two
    assert "prototype" not in run.metrics[0]
    assert all("prototype" in record for record in run.metrics[1:])
    assert [record["bank_age"] for record in run.metrics] == [0.0] * 4  # 48 photos are three whole batches
    assert -1 <= run.metrics[-1]["bank_cosine"] <= 1
    assert run.health.words
    protonce.train(photos, tmp_path / "pass", **{**BANK, "e_step_features": "pass"})
    assert len(passes) == 3 + 5


def test_a_resumed_run_equals_an_uninterrupted_one(photos, tmp_path, monkeypatch):
    whole = protonce.train(photos, tmp_path / "whole", **BANK)
    train_until((2, 1), monkeypatch, photos, tmp_path / "stopped", BANK)
    stopped = protonce.train(photos, tmp_path / "stopped", resume=True, **BANK)
    for file in ("encoder.safetensors", "prototypes.npz"):
        assert (whole.path / file).read_bytes() == (stopped.path / file).read_bytes(), file


def train_with_a_bank(photos, out):
    """Batches of 15, which two ranks share as 8 and 7; without batch norm, parts of a batch change only rounding."""
    return protonce.train(photos, out, encoder=network(), **{**BANK, "batch_size": 15, "head": "mlp"})


def test_two_processes_have_the_bank_of_one(photos, tmp_path):
    run_on_ranks(train_with_a_bank, photos, tmp_path / "two")
    one, two = train_with_a_bank(photos, tmp_path / "one"), protonce.load(tmp_path / "two")
    for ours, theirs in zip(one.metrics, two.metrics, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
        assert ours.get("bank_age") == theirs.get("bank_age")
    weights = [load_file(run.path / "encoder.safetensors") for run in (one, two)]
    torch.testing.assert_close(*weights, atol=1e-3, rtol=1e-2)
    assert np.mean([record.get("bank_age", 0) for record in one.metrics]) > 0  # the last batch of an epoch is dropped
