"""Run folders and checkpoints from before systems had options of their own: read, and resumed, as what they were."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest
import torch
import yaml

import protonce
from conftest import SMALL, train_until
from protonce import manifest
from protonce.errors import UserError
from protonce.methods.base import System, Term
from protonce.methods.pcl import PCL
from protonce.prototypes import Prototypes
from protonce.report.page import write_report
from protonce.run.checking import check_run

pytestmark = pytest.mark.usefixtures("quick_page")
PCLS = {"terms": "both", "negatives": 16000, "prototype_weight": 1.0, "warmup_epochs": 1, "ramp_epochs": 0}
NEW = ("record_every", "optimizer", "lr_warmup_epochs", "lr_final", "clip_gradients")
NEW_IN_3 = {
    "phi_clamp": "percentiles",
    "phi_of_identical": "largest",
    "block_init": "timm",
    "queue_push": "before",
    "queue_start": "empty",
    "own_keys": "masked",
    "negative_prototypes": "others",
}
NEW_IN_4 = {"keep_features": 0, "snapshot_every": 0, "twin_update": "after"}
NEW_IN_5 = {"e_step_features": "pass", "gate": "all", "cluster_keys": "negatives", "bank_momentum": 0.5}
NEW_IN_7 = {
    "trained_stages": 0,
    "batch_norm": "batch",
    "head_init": "random",
    "start_share": 0.0,
    "instance_weight": 1.0,
}
NEW_SINCE = {
    2: {**NEW_IN_3, **NEW_IN_4, **NEW_IN_5, **NEW_IN_7},
    3: {**NEW_IN_4, **NEW_IN_5, **NEW_IN_7},
    4: {**NEW_IN_5, **NEW_IN_7},
    5: NEW_IN_7,
    6: NEW_IN_7,
}
REMOVED_IN_6 = {"tensorboard_every": 0}


def age(path, **changes):
    """Rewrite a run as it was then: every setting of PCL for MoCo too, no word of the system, and no manifest."""
    config = yaml.safe_load((path / "config.yaml").read_text())
    del config["system"], config["data"]["own_system"], config["format"], config["threads"]
    for part in ("asked", "settings"):
        kept = {name: value for name, value in config[part].items() if name not in (*NEW, *NEW_SINCE[2])}
        config[part] = {**PCLS, **REMOVED_IN_6, **kept, **changes}
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


def age_to(version, path):
    """Rewrite a run as an older format, without newer settings; return those, and which of them it never had."""
    config = yaml.safe_load((path / "config.yaml").read_text())
    new = NEW_SINCE[version]
    missing = {name for name in new if name not in config["settings"]}
    for part in ("asked", "settings"):
        config[part] = REMOVED_IN_6 | {name: value for name, value in config[part].items() if name not in new}
    manifest.write(path, "config.yaml", yaml.safe_dump({**config, "format": version}, sort_keys=False))
    files = json.loads((path / "manifest.json").read_text())["files"]
    digest = hashlib.sha256(json.dumps([version, files], sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps({"format": version, "files": files, "sha256": digest}))
    return new, missing


@pytest.mark.parametrize("version", NEW_SINCE)
@pytest.mark.parametrize("method", ["pcl", "moco"])
def test_a_run_of_an_older_format_is_read_as_what_its_code_did(photos, tmp_path, monkeypatch, method, version):
    """And resumed to the byte."""
    settings = {**SMALL, "method": method, "epochs": 2, "quiet": True}
    settings |= {"warmup_epochs": 1} if method == "pcl" else {}
    whole = protonce.train(photos, tmp_path / "whole", **settings)
    train_until((1, 2), monkeypatch, photos, tmp_path / "run", settings)
    new, missing = age_to(version, tmp_path / "run")
    of_pcl = {"negative_prototypes", "instance_weight", *NEW_IN_5} & {*new}
    assert missing == (of_pcl if method == "moco" else set())
    old = protonce.load(tmp_path / "run")
    assert old.settings == dataclasses.replace(whole.settings, checkpoint_minutes=0.0)
    assert old.options == whole.options
    found = {**dataclasses.asdict(old.settings), **old.options}
    assert {name: found[name] for name in new if name in found} == {
        name: value for name, value in new.items() if name not in missing
    }
    checked = check_run(tmp_path / "run")
    assert f"format {version}, of an older version of protonce" in checked.notes
    assert not checked.damaged
    with pytest.raises(UserError, match="was started with queue_push before, not after"):
        protonce.train(photos, old.path, resume=True, quiet=True, queue_push="after")
    with pytest.raises(UserError, match="was started with twin_update after, not next"):
        protonce.train(photos, old.path, resume=True, quiet=True, twin_update="next")
    run = protonce.train(photos, tmp_path / "run", resume=True, quiet=True)
    for name in ("encoder.safetensors", "prototypes.npz"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_a_system_of_ones_own_in_format_2_gets_the_options_it_is_built_on(photos, tmp_path):
    class Mine(PCL):
        """PCL."""

    class Other(System):
        """The mean of the embeddings."""

        terms = ("mean",)

        def m_step(self, batch, state):
            loss = self.query(batch.views[0]).mean()
            return loss, {"mean": Term(loss)}

    newer = {*NEW_SINCE[2]}
    for method, new in ((Mine, newer & {*PCL.Options.names()}), (Other, set())):
        run = protonce.train(photos, tmp_path / method.__name__, method=method, epochs=1, quiet=True, **SMALL)
        age_to(2, run.path)
        assert newer & {*protonce.load(run.path).options} == new
        protonce.train(photos, run.path, method=method, resume=True, quiet=True)  # it has ended


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
