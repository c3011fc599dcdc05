"""Sinkhorn-Knopp over all images: against a naive loop, linear programming, and its own marginals."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from protonce import transport
from protonce.transport import most_likely, sinkhorn


def shares(n, k, spread=1.0, seed=0):
    """Logarithms of p(y | x) of n images; labels differ in how likely they are for all of them."""
    generator = torch.Generator().manual_seed(seed)
    common = 0.1 * torch.randn(k, generator=generator)
    return (spread * (torch.randn(n, k, generator=generator) + common)).log_softmax(dim=1)


def plan(log_p, power, scaling):
    """Q, (n, k)."""
    return (scaling.images[:, None] + power * log_p.double() + scaling.labels).exp()


@pytest.mark.parametrize("block", [transport.BLOCK, 10])
@pytest.mark.parametrize("large", [transport.LARGE, 0.1])
def test_the_plan_is_that_of_a_naive_loop(monkeypatch, block, large):
    """Eq. 7 with lists of numbers, on P^λ itself; in one block or in many, factors kept apart or not."""
    monkeypatch.setattr(transport, "BLOCK", block)
    monkeypatch.setattr(transport, "LARGE", large)
    n, k, power = 7, 3, 5.0
    log_p = shares(n, k)
    p = (power * log_p.double()).exp().tolist()
    alpha, beta = [1.0] * k, [1 / n] * n
    for _ in range(300):
        alpha = [1 / (k * sum(beta[i] * p[i][y] for i in range(n))) for y in range(k)]
        beta = [1 / (n * sum(alpha[y] * p[i][y] for y in range(k))) for i in range(n)]
    expected = torch.tensor([[beta[i] * p[i][y] * alpha[y] for y in range(k)] for i in range(n)], dtype=torch.double)
    scaling = sinkhorn(log_p, power, tolerance=1e-9)
    torch.testing.assert_close(plan(log_p, power, scaling), expected, atol=1e-7, rtol=1e-4)
    assert torch.equal(most_likely(log_p, power, scaling), expected.argmax(dim=1))


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0])
def test_labels_have_equal_shares(spread):
    """Of the plan, up to its tolerance; and of the label with most of each image nearly, whatever images look like."""
    n, k = 1000, 8
    log_p = shares(n, k, spread)
    scaling = sinkhorn(log_p, 25.0)
    q = plan(log_p, 25.0, scaling)
    torch.testing.assert_close(q.sum(dim=0), torch.full((k,), 1 / k, dtype=torch.double), atol=1e-3, rtol=0)
    torch.testing.assert_close(q.sum(dim=1), torch.full((n,), 1 / n, dtype=torch.double))
    counts = most_likely(log_p, 25.0, scaling).bincount(minlength=k)
    assert (counts - n / k).abs().max() <= 0.2 * n / k
    without = log_p.argmax(dim=1).bincount(minlength=k)
    assert (counts - n / k).abs().max() < (without - n / k).abs().max(), "or it would balance nothing"


def test_a_large_lambda_solves_the_assignment_problem():
    """Without entropy it is a linear program: with n = k, each image has a label of its own, the same as scipy's."""
    log_p = shares(8, 8, spread=3.0)
    _, best = linear_sum_assignment(log_p.numpy(), maximize=True)
    scaling = sinkhorn(log_p, 100.0, longest=5000)  # P^λ has entries of 1e-400
    np.testing.assert_array_equal(most_likely(log_p, 100.0, scaling), best)


def test_nothing_underflows():
    """P^λ itself would be 0 in whole columns."""
    scores = shares(50, 5, spread=30.0) - torch.tensor([0.0, 50.0, 0.0, 0.0, 0.0])
    scaling = sinkhorn(scores.log_softmax(dim=1), 1000.0, longest=50)
    assert scaling.labels.isfinite().all()
    assert scaling.images.isfinite().all()
