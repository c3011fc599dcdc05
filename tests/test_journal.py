"""What training writes into the run folder, and that one process at a time does."""

import csv
import json
import time

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

import protonce
from conftest import SMALL
from processes import printed_by, start
from protonce import journal
from protonce.errors import UserError
from protonce.run.writing import locked


def test_the_run_folder_is_as_designed(trained):
    path = trained.path
    config = yaml.safe_load((path / "config.yaml").read_text())
    assert config["settings"]["clusters"] == [4, 8]
    assert "auto" not in config["settings"].values()
    assert config["data"]["images"] == 48
    assert config["versions"]["torch"]
    rows = list(csv.DictReader((path / "images.csv").open()))
    assert rows[17] == {"index": "17", "name": "slope1/01.png", "label": "slope1"}
    assert (path / "skipped.csv").read_text() == "name,reason\n"

    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert "prototype" not in lines[0], "the first epoch is warm-up"
    for line in lines[1:]:
        for least, *_, greatest in line["phi"]:
            assert 0 < least <= 0.2 <= greatest
        assert line["loss"] == pytest.approx(line["instance"] + line["prototype"], abs=1e-4)
        assert 0 <= line["prototype_accuracy"] <= 1
        assert len(line["phi"]) == 2

    for epoch in (1, 2, 3):
        with np.load(path / "assignments" / f"{epoch:04d}.npz") as file:
            assert [file[f"assignment_{m}"].shape for m in (0, 1)] == [(48,), (48,)]
    state = load_file(path / "encoder.safetensors")
    assert {name.split(".")[0] for name in state} == {"query", "momentum"}
    assert {name.split(".")[1] for name in state} == {"backbone", "head"}
    for c, asked in zip(trained.prototypes, (4, 8), strict=True):
        assert c.centroids.shape[0] <= asked
        assert c.assignment.bincount().min() > 0
    (parent,) = trained.parents
    assert len(parent) == len(trained.prototypes[1].centroids)
    assert parent.max() < len(trained.prototypes[0].centroids)
    assert not [p for p in path.rglob("*") if p.name.endswith(".part")]


def test_instance_only_runs_are_clustered_for_the_record(photos, tmp_path):
    run = protonce.train(photos, tmp_path / "r", method="moco", epochs=1, quiet=True, **SMALL)
    assert (run.path / "assignments" / "0001.npz").exists()
    assert len(run.prototypes) == 2


def hold_the_lock(path):
    with locked(path):
        print("mine", flush=True)
        time.sleep(60)


def test_two_processes_do_not_train_into_one_folder(photos, trained):
    process = start(hold_the_lock, trained.path)
    try:
        while "mine" not in printed_by(process):
            assert process.is_alive()
            time.sleep(0.01)
        with pytest.raises(UserError, match=r"another process is training in .*; wait for it"):
            protonce.train(photos, trained.path, resume=True, quiet=True)
    finally:
        process.kill()
        process.join()
    protonce.train(photos, trained.path, resume=True, quiet=True)  # killed: the lock is gone with it


def test_a_file_that_vanishes_does_not_stop_training(large_photos, tmp_path, capsys, monkeypatch):
    append = journal.append_metrics

    def after_an_epoch(path, record):
        append(path, record)
        (large_photos / "07.jpg").unlink(missing_ok=True)

    monkeypatch.setattr(journal, "append_metrics", after_an_epoch)
    settings = {**SMALL, "clusters": [3], "batch_size": 8, "workers": 0}
    run = protonce.train(large_photos, tmp_path / "run", epochs=3, **settings)
    said = capsys.readouterr().err
    assert said.count("note: 07.jpg can no longer be read") == 1
    assert run.finished
    assert "07.jpg" in (run.path / "skipped.csv").read_text()
