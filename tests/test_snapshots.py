"""Encoders that are kept on the way through a training."""

import pytest
import torch

import protonce
from conftest import SMALL
from protonce.errors import UserError
from protonce.run.checking import check_run


def test_the_encoder_of_every_second_epoch_is_kept(photos, tmp_path):
    run = protonce.train(photos, tmp_path / "r", method="moco", epochs=4, snapshot_every=2, quiet=True, **SMALL)
    assert run.snapshots == [2, 4]
    query = run.encoders[0]
    early, late = (run.snapshot(epoch) for epoch in run.snapshots)
    assert not late.training
    for (name, a), b, c in zip(
        query.state_dict().items(), late.state_dict().values(), early.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name
        assert name.endswith("num_batches_tracked") or a.numel() < 8 or not torch.equal(a, c), name
    assert {"snapshots/0002.safetensors", "snapshots/0004.safetensors"} <= set(check_run(run.path).intact)
    shorter = protonce.train(photos, tmp_path / "s", method="moco", epochs=4, quiet=True, **SMALL)
    assert shorter.snapshots == []
    assert shorter.encoder_hash == run.encoder_hash, "it changes nothing of what is learnt"
    assert all(record["cpu_seconds"] > 0 for record in run.metrics)

    damaged = run.path / "snapshots" / "0002.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"0002\.safetensors"):
        run.snapshot(2)
