"""The training loop: it is algorithm 1, it resumes to the byte, and it writes what the design promises."""

import csv
import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning_fabric import Fabric
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import protonce
from conftest import SMALL
from protonce import assembly, checkpoints, journal
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


def stop_after_saving(save, stop_after):
    def save_and_stop(folder, epoch, *rest):
        save(folder, epoch, *rest)
        if epoch == stop_after:
            raise KeyboardInterrupt

    return save_and_stop


@pytest.mark.parametrize("init", ["fresh", "warm"])
@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_resumed_is_uninterrupted_to_the_byte(photos, tmp_path, monkeypatch, stop_after, init):
    settings = {**SMALL, "epochs": 3, "warmup_epochs": 1, "kmeans_init": init, "kmeans_iterations": 2}
    whole = protonce.train(photos, tmp_path / "whole", quiet=True, **settings)
    monkeypatch.setattr(checkpoints, "save", stop_after_saving(checkpoints.save, stop_after))
    with pytest.raises(KeyboardInterrupt):
        protonce.train(photos, tmp_path / "halves", quiet=True, **settings)
    monkeypatch.undo()
    assert not (tmp_path / "halves" / "encoder.safetensors").exists()
    with (tmp_path / "halves" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 9, "lo')  # half a line, as a kill may leave it
    halves = protonce.train(photos, tmp_path / "halves", resume=True, quiet=True, **settings)
    for name in ("encoder.safetensors", "encoder.json", "prototypes.npz", "images.csv"):
        assert (whole.path / name).read_bytes() == (halves.path / name).read_bytes(), name
    lines = [[{k: v for k, v in line.items() if "seconds" not in k} for line in run.metrics] for run in (whole, halves)]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 3


@pytest.mark.parametrize("init", ["fresh", "warm"])
@pytest.mark.parametrize("stop_after", [(0, 1), (1, 2), (2, 3)])
def test_resumed_within_an_epoch_is_uninterrupted_to_the_byte(photos, tmp_path, monkeypatch, stop_after, init):
    settings = {**SMALL, "epochs": 3, "warmup_epochs": 1, "kmeans_init": init, "kmeans_iterations": 2}
    whole = protonce.train(photos, tmp_path / "whole", quiet=True, **settings)
    save = checkpoints.save

    def save_and_stop(folder, epoch, parts, begun=None):
        save(folder, epoch, parts, begun)
        if begun is not None and (epoch, begun.step) == stop_after:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "save", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        protonce.train(photos, tmp_path / "parts", quiet=True, checkpoint_minutes=0, **settings)
    monkeypatch.undo()
    assert len(protonce.load(tmp_path / "parts").metrics) == stop_after[0]
    parts = protonce.train(photos, tmp_path / "parts", resume=True, quiet=True, **settings)
    for name in ("encoder.safetensors", "prototypes.npz", "assignments/0002.npz"):
        assert (whole.path / name).read_bytes() == (parts.path / name).read_bytes(), name
    lines = [[{k: v for k, v in line.items() if "seconds" not in k} for line in run.metrics] for run in (whole, parts)]
    assert lines[0] == lines[1]
    assert all(line["seconds"] > 0 for line in parts.metrics)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_after_the_step_with_a_checkpoint(photos, tmp_path, number, code):
    options = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items()]
    command = [sys.executable, "-m", "protonce", "train", str(photos), "--epochs", "400", "--no-report", *options]
    out = tmp_path / "run"
    process = subprocess.Popen(
        [*command, "--out", str(out)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    while not ((out / "metrics.jsonl").exists() and (out / "metrics.jsonl").read_text()):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == code
    (stopped,) = re.findall(r"stopped after step (\d+) of epoch (\d+); continue with --resume", said)
    checkpoint = checkpoints.load(out / "checkpoints")
    assert (checkpoint["begun"]["step"], checkpoint["epoch"] + 1) == tuple(map(int, stopped))
    assert "Traceback" not in said


def test_two_processes_do_not_train_into_one_folder(photos, trained):
    holder = "import sys, time; from pathlib import Path; from protonce.run.writing import locked\n"
    holder += "with locked(Path(sys.argv[1])):\n    print('mine', flush=True)\n    time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", holder, str(trained.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "mine\n"
        with pytest.raises(UserError, match=r"another process is training in .*; wait for it"):
            protonce.train(photos, trained.path, resume=True, quiet=True)
    finally:
        process.kill()
        process.wait()
    protonce.train(photos, trained.path, resume=True, quiet=True)  # killed: the lock is gone with it


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_runs_resume_to_the_byte(large_photos, tmp_path, workers):
    """20 runs, each killed with SIGKILL up to three times at random moments, some of them within a checkpoint."""
    script = Path(__file__).parent / "killed.py"
    command = [sys.executable, script, large_photos, tmp_path, str(workers), "20"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=script.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same, epochs [1, 2, 3, 4]") == 20
    assert "in checkpoint" in done.stdout


@pytest.mark.parametrize("full_at", [1, 2, 5])
def test_a_full_disk_leaves_the_last_checkpoint_whole(photos, tmp_path, monkeypatch, full_at):
    settings = {**SMALL, "epochs": 3, "warmup_epochs": 1}
    whole = protonce.train(photos, tmp_path / "whole", quiet=True, **settings)
    fsync, saved = os.fsync, []

    def fsync_or_full(descriptor):
        if ".last.pt.part" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            saved.append(descriptor)
            if len(saved) == full_at:
                raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_or_full)
    with pytest.raises(
        UserError, match=f"the disk of {tmp_path}/run is full: free some space and continue with --resume"
    ):
        protonce.train(photos, tmp_path / "run", quiet=True, checkpoint_minutes=0, **settings)
    monkeypatch.undo()
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    run = protonce.train(photos, tmp_path / "run", quiet=True, resume=True, **settings)
    assert (run.path / "encoder.safetensors").read_bytes() == (whole.path / "encoder.safetensors").read_bytes()


def test_resuming_keeps_what_auto_chose_when_the_run_began(photos, tmp_path, monkeypatch):
    from protonce import auto

    kept = {k: v for k, v in SMALL.items() if k not in ("clusters", "batch_size")}
    monkeypatch.setattr(checkpoints, "save", stop_after_saving(checkpoints.save, 1))
    with pytest.raises(KeyboardInterrupt):
        protonce.train(photos, tmp_path / "r", epochs=2, quiet=True, **kept)
    monkeypatch.undo()
    monkeypatch.setattr(auto, "_clusters", lambda n: [2, 3])  # a later version
    run = protonce.train(photos, tmp_path / "r", epochs=2, quiet=True, resume=True, **kept)
    assert len(run.settings.clusters) == 3
    assert run.finished


def test_resume_where_nothing_was_saved_starts_at_the_beginning(photos, tmp_path):
    out = tmp_path / "r"
    protonce.train(photos, out, epochs=1, resume=True, quiet=True, **SMALL)  # no folder at all
    first = (out / "encoder.safetensors").read_bytes()
    shutil.rmtree(out / "checkpoints")
    (out / "encoder.safetensors").unlink()
    protonce.train(photos, out, epochs=1, resume=True, quiet=True, **SMALL)  # a folder, but no checkpoint
    assert (out / "encoder.safetensors").read_bytes() == first
    (out / "config.yaml").unlink()
    for name in ("encoder.safetensors", "encoder.json", "prototypes.npz", "metrics.jsonl"):
        (out / name).unlink()
    shutil.rmtree(out / "checkpoints")
    shutil.rmtree(out / "assignments")
    protonce.train(photos, out, epochs=1, resume=True, quiet=True, **SMALL)  # killed before config.yaml
    assert (out / "encoder.safetensors").read_bytes() == first


def test_resume_before_the_first_checkpoint_still_starts_from_the_weights(trained, photos, tmp_path):
    settings = {**SMALL, "epochs": 1, "init": str(trained.path)}
    whole = protonce.train(photos, tmp_path / "r", quiet=True, **settings)
    expected = (whole.path / "encoder.safetensors").read_bytes()
    shutil.rmtree(whole.path / "checkpoints")
    (whole.path / "encoder.safetensors").unlink()
    protonce.train(photos, whole.path, quiet=True, resume=True)
    assert (whole.path / "encoder.safetensors").read_bytes() == expected


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
            expected = twin.eval()(views)
        torch.testing.assert_close(features(), expected, atol=1e-5, rtol=1e-4)
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
    assert checkpoints.load(tmp_path / "r" / "checkpoints")["epoch"] == 1


def test_a_damaged_checkpoint_is_named(photos, trained):
    (trained.path / "encoder.safetensors").unlink()
    (trained.path / "checkpoints" / "last.pt").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"last.pt is damaged; remove it"):
        protonce.train(photos, trained.path, resume=True, quiet=True)


def test_weights_to_start_from_are_the_same_by_any_name(trained, photos, tmp_path, monkeypatch):
    """Relative to the folder of the start, as runs had them once, and where they are no longer there."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained.path, "base")
    settings = {**SMALL, "epochs": 1}
    run = protonce.train(photos, "run", init="base", quiet=True, **settings)
    assert run.settings.init == str(tmp_path / "base")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(f"init: {tmp_path}/base", "init: base"))
    assert protonce.load("run").settings.init == "base"
    for there in (True, False):
        protonce.train(photos, "run", resume=True, quiet=True)
        protonce.train(photos, "run", resume=True, quiet=True, init="base")
        with pytest.raises(UserError, match="was started with init base, not"):
            protonce.train(photos, "run", resume=True, quiet=True, init=str(trained.path))
        if there:
            shutil.rmtree("base")


def test_a_finished_run_is_not_trained_again(trained, photos):
    before = (trained.path / "encoder.safetensors").stat().st_mtime_ns
    protonce.train(photos, trained.path, resume=True, quiet=True)
    assert (trained.path / "encoder.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "is not empty"),
        ({"resume": True, "tau": 0.5}, "started with tau 0.2, not 0.5"),
        ({"resume": True, "recipe": "pcl-v1"}, "started with recipe small-v2"),
        ({"resume": True, "limit": 20}, "started with limit 0, not 20"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(trained, photos, changes, words):
    before = sorted(p.name for p in trained.path.iterdir())
    with pytest.raises(UserError, match=words):
        protonce.train(photos, trained.path, quiet=True, **changes)
    assert sorted(p.name for p in trained.path.iterdir()) == before


def test_labels_never_reach_training(photos, tmp_path):
    """The same images without class folders give the same encoder."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in sorted(photos.rglob("*.png")):
        shutil.copy(file, flat / f"{file.parent.name}-{file.name}")
    a = protonce.train(photos, tmp_path / "a", epochs=1, quiet=True, **SMALL)
    b = protonce.train(flat, tmp_path / "b", epochs=1, quiet=True, **SMALL)
    assert (a.path / "encoder.safetensors").read_bytes() == (b.path / "encoder.safetensors").read_bytes()


def test_the_seed_decides_and_the_callers_generator_does_not(photos, tmp_path):
    torch.manual_seed(7)
    state = torch.get_rng_state()
    a = protonce.train(photos, tmp_path / "a", epochs=1, quiet=True, **SMALL)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    b = protonce.train(photos, tmp_path / "b", epochs=1, quiet=True, **SMALL)
    c = protonce.train(photos, tmp_path / "c", epochs=1, quiet=True, seed=1, **SMALL)
    first, second, third = ((r.path / "encoder.safetensors").read_bytes() for r in (a, b, c))
    assert first == second
    assert first != third


def test_too_few_images_and_nothing_written(tmp_path):
    images = np.zeros((5, 16, 16), dtype=np.uint8)
    with pytest.raises(UserError, match="5 readable images; training needs at least 8"):
        protonce.train(images, tmp_path / "r", quiet=True)
    with pytest.raises(UserError, match="pass views="):
        protonce.train(_Rows(), tmp_path / "r", quiet=True)
    assert not (tmp_path / "r").exists()


def test_identical_images_train(tmp_path, capsys):
    """Nothing to tell apart: one cluster, said once, and a finite loss."""
    images = np.full((40, 16, 16), 90, dtype=np.uint8)
    run = protonce.train(images, tmp_path / "r", epochs=2, warmup_epochs=0, **SMALL)
    assert capsys.readouterr().err.count("requested 8 clusters but found only 1 distinct features") == 1
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["clusters"] == [1, 1]
    assert all(math.isfinite(line["loss"]) for line in lines)


class _Rows:
    """Vectors of two groups: another modality."""

    def __len__(self):
        return 40

    def load(self, i):
        return torch.full((6,), float(i % 2)) + torch.arange(6) * 0.01 * i


class _Noise:
    def train(self, samples):
        u = [torch.from_numpy(samples.uniform(which, 6)).float() for which in ("query", "key")]
        return samples.data + u[0], samples.data + u[1]

    def plain(self, samples):
        return samples.data


def test_own_data_views_and_encoder(tmp_path):
    def network():
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU())

    torch.manual_seed(0)
    settings = {"clusters": [2], "dim": 4, "epochs": 2, "batch_size": 8, "recipe": "small-v2", "device": "cpu"}
    run = protonce.train(_Rows(), tmp_path / "r", encoder=network(), views=_Noise(), quiet=True, **settings)
    embedding = run.embed(_Rows())
    assert embedding.features.shape == (40, 8)
    again = protonce.load(run.path, encoder=network(), views=_Noise())
    np.testing.assert_allclose(again.embed(_Rows()).features, embedding.features)
    with pytest.raises(UserError, match="pass it as encoder="):
        protonce.load(run.path, views=_Noise()).embed(_Rows())
    with pytest.raises(UserError, match="pass them as views="):
        protonce.load(run.path, encoder=network()).embed(_Rows())
    with pytest.raises(UserError, match="was started with encoder="):
        protonce.train(_Rows(), run.path, views=_Noise(), resume=True, quiet=True)
    with pytest.raises(UserError, match="need an encoder of your own"):
        protonce.train(_Rows(), tmp_path / "other", views=_Noise(), quiet=True, **settings)
    assert not (tmp_path / "other").exists()


def test_progress_says_the_time_left_and_how_to_halve_it(monkeypatch, capsys):
    from protonce import progress

    clock = iter(range(0, 100000, 5))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: float(next(clock)))
    reporter = progress.Reporter()
    reporter.begin(terms=(), epochs=40, steps=100)
    with reporter:
        reporter.clustering(0)
        reporter.clustered()
        for _ in range(19):
            reporter.step(0, None)
        assert "to go" not in capsys.readouterr().err
        reporter.step(0, None)
        # 3980 steps of 5 s, and 39 E-steps of 5 s
        assert "about 5 h 35 min to go; --epochs 20 would halve it" in capsys.readouterr().err


@pytest.fixture
def large_photos(tmp_path):
    """24 pictures that are too large to be kept in memory: they are read anew in each epoch."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(24):
        pixels = rng.integers(0, 255, (140, 140, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i:02d}.jpg")
    return tmp_path / "photos"


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


@pytest.mark.parametrize("small", [True, False], ids=["small", "large"])
def test_a_run_resumes_where_files_have_come_and_gone(photos, large_photos, tmp_path, capsys, monkeypatch, small):
    """It goes on with its own images, in their places; those that are gone are replaced by others."""
    folder = tmp_path / "changing"
    shutil.copytree(photos if small else large_photos, folder)
    settings = {**SMALL, "clusters": [3], "batch_size": 8, "workers": 0, "epochs": 3, "limit": 20}
    monkeypatch.setattr(checkpoints, "save", stop_after_saving(checkpoints.save, 1))
    with pytest.raises(KeyboardInterrupt):
        protonce.train(folder, tmp_path / "run", quiet=True, **settings)
    monkeypatch.undo()
    names = protonce.load(tmp_path / "run").images[0]
    shutil.copytree(tmp_path / "run", tmp_path / "again")

    (folder / "a_new_one.png").write_bytes(next(photos.rglob("*.png")).read_bytes())
    whole = protonce.train(folder, tmp_path / "again", resume=True, quiet=True, **settings)
    assert whole.images[0] == names

    (folder / names[3]).unlink()
    run = protonce.train(folder, tmp_path / "run", resume=True, **settings)
    assert f"note: {names[3]} can no longer be read (file not found); another" in capsys.readouterr().err
    assert run.finished
    assert run.images[0] == names
    assert (run.path / "skipped.csv").read_text().count(names[3]) == 1
    assert [len(c.assignment) for c in run.prototypes] == [20]


def test_a_run_does_not_resume_on_other_images(photos, tmp_path, monkeypatch):
    folder = tmp_path / "changing"
    shutil.copytree(photos, folder)
    monkeypatch.setattr(checkpoints, "save", stop_after_saving(checkpoints.save, 1))
    with pytest.raises(KeyboardInterrupt):
        protonce.train(folder, tmp_path / "run", epochs=2, quiet=True, **SMALL)
    monkeypatch.undo()
    files = sorted(folder.rglob("*.png"))
    Image.new("RGB", (20, 20)).save(files[0])  # of another size on the disk
    with pytest.raises(UserError, match="are not; resume it with the data it started with"):
        protonce.train(folder, tmp_path / "run", epochs=2, quiet=True, resume=True, **SMALL)
    for file in files[:30]:
        file.unlink()
    with pytest.raises(UserError, match=r"images of .* are not; resume it"):
        protonce.train(folder, tmp_path / "run", epochs=2, quiet=True, resume=True, **SMALL)


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
    assert checkpoints.load(half.path / "checkpoints")["precision"]["scale"] == 65536.0
