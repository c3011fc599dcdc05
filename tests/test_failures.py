"""What the machine refuses is explained in one sentence, and an error of the program stays one."""

import errno

import numpy as np
import pytest
import torch

from protonce.cli import main
from protonce.cli.failures import explain


@pytest.mark.parametrize("ask", [lambda: torch.empty(1 << 60), lambda: np.empty(1 << 50)])
def test_exhausted_memory_comes_with_advice(ask, monkeypatch, capsys):
    with pytest.raises((MemoryError, RuntimeError)) as raised:
        ask()
    assert "out of memory; choose a smaller batch_size" in explain(raised.value)
    monkeypatch.setattr("protonce.demo.run_demo", lambda *_, **__: ask())
    assert main(["demo"]) == 2
    assert capsys.readouterr().err.startswith("protonce: out of memory")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), "out of memory"),
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), "the disk is full: a/b; free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), "Permission denied: a/b"),
        (OSError("4 requested and 0 written"), "4 requested and 0 written"),
        (OSError(), "OSError"),
        (RuntimeError("shapes differ"), None),
    ],
)
def test_each_refusal_has_its_sentence(error, words):
    found = explain(error)
    assert found is None if words is None else found.startswith(words)
