"""Several processes train one encoder: the same batch, queue and prototypes as one process has."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import protonce
from conftest import SMALL
from processes import command, run_on_ranks
from protonce.context import Context
from protonce.errors import UserError
from two_ranks import CASES, m_steps_and_exchange

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
OPTIONS = [f"--{name.replace('_', '-')}={str(value).strip('[]').replace(' ', '')}" for name, value in SMALL.items()]


def torchrun(*words, **options):
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*TORCHRUN, "--standalone", *map(str, words)]
    return subprocess.Popen(command, env=alone, stderr=subprocess.PIPE, text=True, **options)


def train_words(photos, out):
    return ["train", photos, "--out", out, "--no-report", *OPTIONS]


def train_on_two(photos, out, *more, restarts=0):
    """By torchrun itself, which the slow tests of this file use."""
    restart = ["--max-restarts", restarts, "--monitor-interval", "0.1"]
    return torchrun(*restart, "-m", "protonce", *train_words(photos, out), *more)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What two ranks left, and in the same folder what one process leaves."""
    out = tmp_path_factory.mktemp("ranks")
    run_on_ranks(m_steps_and_exchange, out)
    m_steps_and_exchange(out)
    return out


@pytest.mark.parametrize(("batch_size", "norm", "queries"), CASES)
def test_two_ranks_compute_what_one_does(two_ranks, batch_size, norm, queries):
    """Batch norm too: both ranks' sub-batches are those of one process, and keys are shuffled over all ranks."""
    names = [f"{norm}-{queries}-{batch_size}-rank{rank}.pt" for rank in ("0of2", "1of2", "0of1")]
    first, second, one = (torch.load(two_ranks / name) for name in names)
    for two in (first, second):
        for name, expected in one["gradients"].items():
            torch.testing.assert_close(
                two["gradients"][name], expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max())
            )
        torch.testing.assert_close(two["queue"], one["queue"])
        torch.testing.assert_close(two["logs"], one["logs"])
        assert two["queue"]["index"][:batch_size].tolist() == list(range(batch_size))  # both ranks' keys
        assert two["features"].tolist() == list(range(7))
        for m in range(2):
            assert torch.equal(two["prototypes"][m], one["prototypes"][m])
    assert all(torch.equal(a, b) for a, b in zip(first["statistics"], second["statistics"], strict=True))


@pytest.mark.parametrize(("batch_size", "size"), [(15, 4), (16, 4), (7, 3), (5, 1)])
def test_the_first_row_of_a_rank_is_that_of_its_part(batch_size, size):
    for rank, rows in enumerate(torch.arange(batch_size).tensor_split(size)):
        ranks = SimpleNamespace(rank=rank, world_size=size)
        assert Context(batch_size=batch_size, ranks=ranks).first_row == rows[0]


def test_gathered_rows_and_sums_carry_gradients_back(two_ranks):
    """A loss over all rows, on ranks of 4 and 3 rows, has the gradient it has in one process."""
    first, second, one = (torch.load(two_ranks / f"exchange-rank{r}.pt") for r in ("0of2", "1of2", "0of1"))
    for two in (first, second):
        torch.testing.assert_close(two["loss"], one["loss"])
        torch.testing.assert_close(two["gradient"], one["gradient"])
    assert one["gradient"].abs().min() > 0


@pytest.fixture(scope="module")
def undisturbed(photos, tmp_path_factory):
    """A run on two ranks from its beginning to its end."""
    out = tmp_path_factory.mktemp("ranks") / "run"
    run_on_ranks(command, *train_words(photos, out), "--epochs", 30)
    return protonce.load(out)


def test_a_run_on_two_ranks_is_the_run_on_one(photos, others, tmp_path):
    """The first epoch, in which nothing but rounding and the twin's running statistics differs."""
    watching = ("--watch", others, "--watch-every", 1, "--logger", "csv")
    run_on_ranks(command, *train_words(photos, tmp_path / "two"), "--epochs", 3, *watching)
    two = protonce.load(tmp_path / "two")
    one = protonce.train(photos, tmp_path / "one", epochs=3, quiet=True, **SMALL)
    for name in ("loss", "instance_accuracy", "instance_chance"):
        assert two.metrics[0][name] == pytest.approx(one.metrics[0][name], rel=1e-4)
    assert two.metrics[0]["bound_before"] == pytest.approx(one.metrics[0]["bound_before"], rel=1e-4)
    assert len(two.metrics) == 3
    assert all({*line["scores"]} == {"knn", "linear"} for line in two.metrics)
    assert len(list((two.path / "logs" / "csv").iterdir())) == 1, "one rank logs"


@pytest.mark.slow
def test_an_error_is_reported_by_one_rank(tmp_path):
    process = train_on_two(tmp_path / "nowhere", tmp_path / "run")
    _, errors = process.communicate(timeout=600)
    assert process.returncode != 0
    assert errors.count("protonce: ") == 1
    assert not (tmp_path / "run").exists()


def ranks_of(process):
    """Process ids of the ranks that torchrun has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children]


def wait_for(condition, seconds=120):
    for _ in range(10 * seconds):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def epochs_of(out):
    metrics = out / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_changes_nothing(photos, undisturbed, tmp_path, victim):
    """Both are started again, and go on from the last checkpoint."""
    out = tmp_path / "run"
    process = train_on_two(photos, out, "--epochs", 30, "--resume", "--checkpoint-minutes", 0.005, restarts=2)
    wait_for(lambda: epochs_of(out) >= 2)
    os.kill(ranks_of(process)[victim], signal.SIGKILL)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "resuming after" in errors
    ours, theirs = ((run / "encoder.safetensors").read_bytes() for run in (out, undisturbed.path))
    assert ours == theirs


@pytest.mark.slow
def test_two_ranks_end_together_when_asked(photos, undisturbed, tmp_path):
    """SIGTERM to torchrun: both keep one checkpoint; resumed, the run ends where the undisturbed one does."""
    out = tmp_path / "run"
    process = train_on_two(photos, out, "--epochs", 30)
    wait_for(lambda: epochs_of(out) >= 2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=240)
    assert process.returncode != 0
    assert "continue with --resume" in errors
    assert epochs_of(out) < 30
    run_on_ranks(command, *train_words(photos, out), "--epochs", 30, "--resume")
    ours, theirs = ((run / "encoder.safetensors").read_bytes() for run in (out, undisturbed.path))
    assert ours == theirs


def test_too_many_ranks(photos, tmp_path, monkeypatch):
    for name, value in (("WORLD_SIZE", "9"), ("LOCAL_WORLD_SIZE", "9"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="WORLD_SIZE is 9, but torchrun did not start this process"):
        protonce.train(photos, tmp_path / "run", epochs=1, quiet=True, **SMALL)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(UserError, match="batch_size 16 leaves less than 2 images for each of 9 processes"):
        protonce.train(photos, tmp_path / "run", epochs=1, quiet=True, **SMALL)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit):  # the first rank of the node reports it
        protonce.train(photos, tmp_path / "run", epochs=1, quiet=True, **SMALL)
    assert not (tmp_path / "run").exists()
