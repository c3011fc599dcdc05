"""Run folders and checkpoints from before systems had options of their own: read, and resumed, as what they were."""

import dataclasses

import numpy as np
import pytest
import torch
import yaml

import protonce
from conftest import SMALL, train_until
from protonce.errors import UserError
from protonce.prototypes import Prototypes
from protonce.report.page import write_report

PCLS = {"terms": "both", "negatives": 16000, "prototype_weight": 1.0, "warmup_epochs": 1, "ramp_epochs": 0}
NEW = ("record_every", "optimizer", "lr_warmup_epochs", "lr_final", "clip_gradients")


def age(path, **changes):
    """Rewrite a run as it was then: every setting of PCL for MoCo too, no word of the system, and no manifest."""
    config = yaml.safe_load((path / "config.yaml").read_text())
    del config["system"], config["data"]["own_system"], config["format"], config["threads"]
    for part in ("asked", "settings"):
        kept = {name: value for name, value in config[part].items() if name not in NEW}
        config[part] = {**PCLS, **kept, **changes}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (path / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("trained_as", "changes", "method", "title", "terms"),
    [
        ("pcl", {}, "pcl", "PCL", ["instance", "prototype"]),
        ("moco", {"method": "moco"}, "moco", "MoCo", ["instance"]),
        ("moco", {"method": "pcl", "terms": "instance"}, "moco", "MoCo", ["instance"]),
    ],
)
def test_an_older_run_is_read_as_what_its_code_did(photos, tmp_path, trained_as, changes, method, title, terms):
    run = protonce.train(photos, tmp_path / "r", method=trained_as, epochs=2, quiet=True, **SMALL)
    before, words = run.options, run.health.words
    age(run.path, **changes)
    old = protonce.load(run.path)
    assert (old.settings.method, old.title, old.terms) == (method, title, terms)
    assert old.settings == dataclasses.replace(run.settings, method=method)
    assert old.options == before
    np.testing.assert_array_equal(old.embed(photos).features, run.embed(photos).features)
    assert title in write_report(old, quiet=True).read_text()
    assert old.health.words == words
    protonce.train(photos, old.path, resume=True, quiet=True)  # it has ended
    with pytest.raises(UserError, match="was started with optimizer sgd, not adamw"):
        protonce.train(photos, old.path, resume=True, quiet=True, optimizer="adamw")


@pytest.mark.parametrize("method", ["pcl", "moco"])
@pytest.mark.parametrize("stop", [(1, 2), (2, None)])
def test_an_older_checkpoint_is_resumed_to_the_byte(photos, tmp_path, monkeypatch, method, stop):
    settings = {**SMALL, "method": method, "epochs": 3, "quiet": True}
    settings |= {"warmup_epochs": 1} if method == "pcl" else {}
    whole = protonce.train(photos, tmp_path / "whole", **settings)
    train_until(stop, monkeypatch, photos, tmp_path / "run", settings)
    age(tmp_path / "run")
    age_checkpoint(tmp_path / "run" / "checkpoints" / "last.pt")
    run = protonce.train(photos, tmp_path / "run", resume=True, quiet=True)
    for name in ("encoder.safetensors", "prototypes.npz"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert [record["phi"] for record in run.metrics] == [record["phi"] for record in whole.metrics]


def age_checkpoint(path):
    """As it was then: PCL's state for MoCo too, and clusters in every epoch that has begun."""
    checkpoint = torch.load(path, weights_only=True)
    begun = checkpoint["begun"]
    if begun is not None:
        found = begun["state"] if begun["state"] is not None else begun["recorded"]
        clusters = [dataclasses.asdict(Prototypes(**c["protonce.Prototypes"])) for c in found]
        signals = {name: value for name, value in begun["signals"].items() if name not in ("clusters", "phi")}
        checkpoint["begun"] = {
            "clusters": clusters,
            "prototypes": begun["state"] is not None,
            "cluster_seconds": signals.pop("cluster_seconds"),
            "signals": {**signals, "prototype_chance": 1.7},
            **{name: begun[name] for name in ("step", "sums", "seconds")},
        }
    checkpoint["method"] = {"_extra_state": [], **checkpoint.pop("system")}
    torch.save(checkpoint, path)
