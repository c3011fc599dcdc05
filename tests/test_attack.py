"""A sample of `benchmarks/attack.py`, and the judge that it relies on."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.attacks import process, stage
from benchmarks.attacks.results import differs

ROOT = Path(__file__).resolve().parents[1]
CASES, SEED = 3, 16  # of each class


@pytest.mark.slow
def test_sample_of_the_attacks_breaks_no_promise():
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "benchmarks.attack", "--cases", str(CASES), "--seed", str(SEED)]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    assert "full-disk" in ended.stdout


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """Judge a command that ends as given, after it has written some files; the kinds of its failures."""

    def judge(code=2, err="protonce: no\n", writes=(), hung=False, right=lambda _: None, **options):
        here = tmp_path / "here"
        (here / "run").mkdir(parents=True, exist_ok=True)

        def run(arguments, here, **limits):
            for name in writes:
                (here / name).parent.mkdir(parents=True, exist_ok=True)
                (here / name).write_text("x")
            return process.Outcome("protonce x", code, hung, False, "", err, 0.1)

        monkeypatch.setattr(process, "run", run)
        played = stage.Stage(None, None, here)
        played.attempt("x", right=right, **options)
        return [kind for kind, _ in played.failures]

    return judge


def test_judge_accepts_a_refusal_and_a_right_result(judged):
    assert judged() == []
    assert judged(err="checking the images of x\nprotonce: no\n") == []
    assert judged(code=0, writes=["x.npz"]) == []
    assert judged(writes=["run/.lock", "run/features/0-query.npy"]) == []  # a cache is whole
    assert judged(writes=["new/config.yaml"], begun=True) == []


def test_judge_sees_each_broken_promise(judged):
    assert judged(code=1, err="Traceback\nValueError: x\n") == ["traceback"]
    assert judged(code=-7, err="") == ["traceback"]
    assert judged(code=-9, hung=True) == ["hang"]
    assert judged(code=0, right=lambda _: "other features") == ["wrong"]
    assert judged(refuse=False) == ["wrong"]
    assert judged(writes=["new/config.yaml"]) == ["left"]
    assert judged(code=0, writes=["run/.x.npy.part"]) == ["left"]
    assert judged(code=0, writes=[".tmp/x"]) == ["left"]


@pytest.mark.parametrize(
    "err",
    [
        "",
        "no\n",
        "protonce: no\nand more\n",
        "protonce: no\nprotonce: no\n",
        f"protonce: {'x' * 1000}\n",
        "protonce: [Errno None] None\n",
        "x.py:1: UserWarning: no\nprotonce: no\n",
    ],
)
def test_judge_wants_one_short_line(judged, err):
    assert judged(err=err) == ["message"]


def test_differs_sees_any_difference():
    expected = {"a": [1.0, np.zeros(3)], "b": b"x"}
    assert differs({"a": [1.0 + 1e-6, np.full(3, 1e-6)], "b": b"x"}, expected) is None
    for other in (
        {"a": [1.0, np.zeros(3)]},
        {"a": [1.1, np.zeros(3)], "b": b"x"},
        {"a": [1.0, np.ones(3)], "b": b"x"},
        {"a": [1.0, np.zeros(4)], "b": b"x"},
        {"a": [1.0, np.full(3, np.nan)], "b": b"x"},
        {"a": [1.0], "b": b"x"},
        {"a": [1.0, np.zeros(3)], "b": "x"},
    ):
        assert differs(other, expected), other
