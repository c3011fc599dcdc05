"""SimCLR, BYOL and SwAV on two ranks: the losses, weights and queues of one process."""

import pytest
import torch

from processes import run_on_ranks
from two_contrast import CASES, m_steps, m_steps_of_all


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    run_on_ranks(m_steps_of_all, out)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_compute_what_one_process_does(two_ranks, case):
    m_steps(two_ranks, case)
    first, second, one = (torch.load(two_ranks / f"{case}-{rank}.pt") for rank in ("0of2", "1of2", "0of1"))
    for two in (first, second):
        torch.testing.assert_close(two["losses"], one["losses"], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(two["state"], one["state"], atol=1e-5, rtol=1e-3)
