"""SimCLR, BYOL and SwAV on two ranks: the losses, weights and queues of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from two_contrast import CASES, m_steps


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).parent / "two_contrast.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, out]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_compute_what_one_process_does(two_ranks, case):
    m_steps(two_ranks, case)
    first, second, one = (torch.load(two_ranks / f"{case}-{rank}.pt") for rank in ("0of2", "1of2", "0of1"))
    for two in (first, second):
        torch.testing.assert_close(two["losses"], one["losses"], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(two["state"], one["state"], atol=1e-5, rtol=1e-3)
