"""The momentum twin: its update, its schedule, and its keys under shuffled batch norm."""

import math

import pytest
import torch
from torch import nn

from conftest import make_system
from protonce.context import Context, Progress
from protonce.encoder import Encoder
from protonce.momentum import encode_keys, encode_shuffled, rising_momentum, twin_of, update_twin


def views(n):
    return torch.randn(n, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_shuffling_changes_partners_but_not_the_order():
    """With no batch norm nothing changes at all; with it each row is normalised in other company."""
    x = views(12)
    plain = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4)), 4, "none", 4).eval()
    for splits in (1, 4):
        keys = encode_keys(plain, x, Context(0, len(x), splits), torch.Generator().manual_seed(0))
        torch.testing.assert_close(keys, plain(x))

    twin = make_system().momentum.train()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    twin.splits = 4
    keys = encode_keys(twin, x, Context(0, 12, 4), torch.Generator().manual_seed(3))
    twin.splits = 1
    expected = torch.cat([twin(x[part]) for part in order.split(3)])
    torch.testing.assert_close(keys[order], expected, atol=1e-5, rtol=1e-4)
    assert not keys.requires_grad


def test_embeddings_of_shuffled_batch_norm_have_a_gradient():
    x, weight = views(12), torch.randn(12, 16, generator=torch.Generator().manual_seed(1))
    ours, theirs = make_system().query.train(), make_system().query.train()
    ours.splits, theirs.splits = 4, 1
    (encode_shuffled(ours, x, Context(0, 12, 4), torch.Generator().manual_seed(3)) * weight).sum().backward()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    sum((theirs(x[part]) * weight[part]).sum() for part in order.split(3)).backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-3)


def test_the_twin_follows_by_momentum_and_takes_no_gradient():
    query = make_system().query
    twin = twin_of(query)
    before = [p.clone() for p in twin.parameters()]
    with torch.no_grad():
        for p in query.parameters():
            p.add_(1.0)
    update_twin(query, twin, 0.9)
    for new, old, q in zip(twin.parameters(), before, query.parameters(), strict=True):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * q.detach())
        assert not new.requires_grad
    assert twin.backbone.bn1.running_mean is not query.backbone.bn1.running_mean


def test_a_momentum_that_rises_to_one():
    """BYOL's: 1 - (1 - 0.99)(cos(pi k / K) + 1) / 2."""
    rises = [rising_momentum(0.99, Progress(epoch, step, 10, 4)) for epoch in range(4) for step in range(10)]
    assert rises[0] == pytest.approx(0.99)
    assert rises[20] == pytest.approx(0.995)
    assert rises[39] == pytest.approx(1 - 0.01 * (math.cos(math.pi * 39 / 40) + 1) / 2)
    assert rises == sorted(rises)
