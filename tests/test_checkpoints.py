"""Checkpoints: a run that was stopped, killed or out of space resumes to the byte."""

import errno
import functools
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import protonce
from conftest import SMALL, stop_after_saving, train_until
from processes import command, printed_by, start
from protonce import checkpoints, manifest
from protonce.errors import UserError
from protonce.methods.registry import SYSTEMS


def settings_for(init):
    return {**SMALL, "epochs": 3, "warmup_epochs": 1, "kmeans_init": init, "kmeans_iterations": 2}


@pytest.fixture(scope="module")
def uninterrupted(photos, tmp_path_factory):
    """The run that nothing interrupts, for each start of k-means; trained once."""
    out = tmp_path_factory.mktemp("uninterrupted")

    @functools.cache
    def train(init):
        return protonce.train(photos, out / init, quiet=True, **settings_for(init))

    return train


@pytest.mark.parametrize("init", ["fresh", "warm"])
@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_resumed_is_uninterrupted_to_the_byte(photos, tmp_path, monkeypatch, uninterrupted, stop_after, init):
    settings, whole = settings_for(init), uninterrupted(init)
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
def test_resumed_within_an_epoch_is_uninterrupted_to_the_byte(
    photos, tmp_path, monkeypatch, uninterrupted, stop_after, init
):
    settings, whole = settings_for(init), uninterrupted(init)
    train_until(stop_after, monkeypatch, photos, tmp_path / "parts", {**settings, "quiet": True})
    assert len(protonce.load(tmp_path / "parts").metrics) == stop_after[0]
    parts = protonce.train(photos, tmp_path / "parts", resume=True, quiet=True, **settings)
    for name in ("encoder.safetensors", "prototypes.npz", "assignments/0002.npz"):
        assert (whole.path / name).read_bytes() == (parts.path / name).read_bytes(), name
    lines = [[{k: v for k, v in line.items() if "seconds" not in k} for line in run.metrics] for run in (whole, parts)]
    assert lines[0] == lines[1]
    assert all(line["seconds"] > 0 for line in parts.metrics)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_ends_after_the_step_with_a_checkpoint(photos, tmp_path, number, code):
    options = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items()]
    out = tmp_path / "run"
    process = start(command, "train", photos, "--epochs", 400, "--no-report", *options, "--out", out)
    while not ((out / "metrics.jsonl").exists() and (out / "metrics.jsonl").read_text()):
        assert process.is_alive(), printed_by(process)
        time.sleep(0.01)
    os.kill(process.pid, number)
    process.join(timeout=60)
    said = printed_by(process)
    assert process.exitcode == code, said
    (stopped,) = re.findall(r"stopped after step (\d+) of epoch (\d+); continue with --resume", said)
    checkpoint = checkpoints.load(out)
    assert (checkpoint["begun"]["step"], checkpoint["epoch"] + 1) == tuple(map(int, stopped))
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "runs", "systems"),
    [(0, 20, ["pcl"]), (2, 20, ["pcl"]), (0, 1, [name for name in SYSTEMS if name not in ("pcl", "random")])],
)
def test_killed_runs_resume_to_the_byte(large_photos, tmp_path, workers, runs, systems):
    """Each is killed with SIGKILL up to three times at random moments, some of them within a checkpoint."""
    for i, path in enumerate(sorted(large_photos.iterdir())):  # one system needs labels
        (large_photos / f"class {i % 2}").mkdir(exist_ok=True)
        path.rename(large_photos / f"class {i % 2}" / path.name)
    script = Path(__file__).parent / "killed.py"
    line = [sys.executable, script, large_photos, tmp_path, str(workers), str(runs), *systems]
    done = subprocess.run(line, capture_output=True, text=True, cwd=script.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same, epochs [1, 2, 3, 4]") == runs * len(systems)
    assert done.stdout.count("in checkpoint") >= len(systems)


@pytest.mark.parametrize("full_at", [1, 2, 5])
def test_a_full_disk_leaves_the_last_checkpoint_whole(photos, tmp_path, monkeypatch, trained, full_at):
    settings = {**SMALL, "epochs": 3, "warmup_epochs": 1}
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
    assert (run.path / "encoder.safetensors").read_bytes() == (trained.path / "encoder.safetensors").read_bytes()


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


def test_a_damaged_checkpoint_is_named(photos, trained):
    (trained.path / "encoder.safetensors").unlink()
    (trained.path / "checkpoints" / "last.pt").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"last.pt is not what protonce wrote: .*; remove it"):
        protonce.train(photos, trained.path, resume=True, quiet=True)


def foreign(checkpoint):
    """Checkpoints of other trainings and other versions."""
    system = checkpoint["system"]
    first = next(name for name, value in system.items() if isinstance(value, torch.Tensor))
    yield {}
    yield {name: value for name, value in checkpoint.items() if name != "optimizer"}
    yield {**checkpoint, "system": {name: value for name, value in system.items() if name != first}}
    yield {**checkpoint, "system": {**system, "other": system[first]}}
    yield {**checkpoint, "system": {**system, first: torch.zeros(3)}}
    yield {**checkpoint, "system": [1, 2]}
    yield {**checkpoint, "optimizer": {"state": {}, "param_groups": []}}
    yield {**checkpoint, "epoch": "two"}
    yield {**checkpoint, "begun": {"what": 1}}
    yield {**checkpoint, "begun": 7}
    yield {**checkpoint, "method": 1}
    yield [checkpoint]
    yield torch.zeros(2)


def test_a_checkpoint_of_another_structure_is_refused(photos, trained):
    (trained.path / "encoder.safetensors").unlink()
    checkpoint = checkpoints.load(trained.path)
    for other in foreign(checkpoint):
        buffer = io.BytesIO()
        torch.save(other, buffer)
        manifest.write(trained.path, "checkpoints/last.pt", buffer.getvalue())
        with pytest.raises(UserError, match=r"last.pt (is damaged|does not fit this run).*; remove it to start"):
            protonce.train(photos, trained.path, resume=True, quiet=True)


def test_a_run_that_lost_its_metrics_is_not_resumed(photos, tmp_path, monkeypatch):
    train_until((2, None), monkeypatch, photos, tmp_path / "run", {**SMALL, "epochs": 3, "quiet": True})
    (tmp_path / "run" / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"metrics.jsonl is missing; restore it from a copy, or remove checkpoints/"):
        protonce.train(photos, tmp_path / "run", resume=True, quiet=True)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert len(protonce.train(photos, tmp_path / "run", resume=True, quiet=True).metrics) == 3


def test_another_number_of_threads_is_said(photos, tmp_path, monkeypatch, capsys):
    train_until((1, None), monkeypatch, photos, tmp_path / "run", {**SMALL, "epochs": 2})
    protonce.train(photos, tmp_path / "run", resume=True)
    assert "threads" not in capsys.readouterr().err
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    protonce.train(photos, tmp_path / "run", resume=True)
    assert "started with 1 threads, not 7: sums are rounded differently" in capsys.readouterr().err
