"""Optimizers and the learning rate, against torch's own and by hand."""

import copy
import math

import pytest
import torch
from torch import nn

from conftest import make_system
from protonce.config import Settings
from protonce.context import Progress
from protonce.optimizers import build_optimizer, clip, learning_rate


def rates(steps, **values):
    """The rates of every step of a training."""
    settings = Settings(**values)
    return [
        learning_rate(settings, Progress(e, s, steps, settings.epochs))
        for e in range(settings.epochs)
        for s in range(steps)
    ]


def test_the_papers_schedules():
    step = rates(1, schedule="step", lr=0.03, epochs=200)
    assert [step[e] for e in (0, 119, 120, 159, 160, 199)] == pytest.approx([0.03, 0.03, 0.003, 0.003, 0.0003, 0.0003])
    cosine = rates(2, lr=0.03, epochs=200)
    assert [cosine[2 * e] for e in (0, 100)] == pytest.approx([0.03, 0.015])
    assert cosine[101] == pytest.approx(0.015 * (1 + math.cos(math.pi * 50.5 / 200)))


def test_the_rate_warms_up_and_ends_at_the_final_one():
    """Against torch's own schedulers, a linear rise and then a cosine."""
    found = rates(4, lr=0.8, epochs=6, lr_warmup_epochs=2, lr_final=0.1)
    assert found[:8] == pytest.approx([0.1 * k for k in range(1, 9)])
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.8)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=16, eta_min=0.1)
    expected = []
    for _ in range(16):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert found[8:] == pytest.approx(expected)
    assert max(rates(4, lr=0.8, epochs=2, lr_warmup_epochs=5)) < 0.8


@pytest.mark.parametrize("warm", [0, 2, 1.5])
def test_the_cosine_by_epochs_falls_once_an_epoch(warm):
    """As the published code's: lr (1 + cos(π epoch / epochs)) / 2 in all steps of an epoch."""
    found = rates(4, lr=0.8, epochs=6, lr_warmup_epochs=warm, schedule="cosine-epoch", lr_final=0.1)
    for place in range(math.ceil(4 * warm), 24):
        share = max(place // 4 - warm, 0) / (6 - warm)
        assert found[place] == pytest.approx(0.1 + 0.7 * 0.5 * (1 + math.cos(math.pi * share))), place
    assert found[: int(4 * warm)] == rates(4, lr=0.8, epochs=6, lr_warmup_epochs=warm)[: int(4 * warm)]
    assert rates(1, lr=0.8, epochs=6, schedule="cosine-epoch") == rates(1, lr=0.8, epochs=6)


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.norm, self.top = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def loss(self):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
        return self.top(self.norm(self.body(x)).relu()).square().mean()


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_sgd_and_adamw_are_torchs(name):
    settings = make_system(optimizer=name, lr=0.05, weight_decay=0.1, sgd_momentum=0.8).settings
    ours, theirs = Toy(), Toy()
    optimizer = build_optimizer([{"params": list(ours.parameters())}], settings)
    matrices = [p for p in theirs.parameters() if p.ndim > 1]
    vectors = [p for p in theirs.parameters() if p.ndim < 2]
    if name == "sgd":
        reference = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.8, weight_decay=0.1)
    else:
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        reference = torch.optim.AdamW(groups, lr=0.05)
    for _ in range(3):
        for model, used in ((ours, optimizer), (theirs, reference)):
            used.zero_grad()
            model.loss().backward()
            used.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("decay", [0.1, 0.0])
def test_lars_by_hand(decay):
    """A matrix moves by lr * 0.001 |w| / (|g| + wd |w|) (g + wd w); a bias by lr g, undecayed (You et al. 2017)."""
    settings = make_system(optimizer="lars", lr=2.0, weight_decay=decay, sgd_momentum=0.0).settings
    model = Toy()
    optimizer = build_optimizer([{"params": list(model.parameters())}], settings)
    before = copy.deepcopy(model)
    model.loss().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    for new, old, g in zip(model.parameters(), before.parameters(), gradients, strict=True):
        trust = 0.001 * old.norm() / (g.norm() + decay * old.norm()) if old.ndim > 1 else 1.0
        moved = g + decay * old if old.ndim > 1 else g
        torch.testing.assert_close(new, old - 2.0 * trust * moved, atol=1e-6, rtol=1e-4)


def test_a_groups_own_decay_wins():
    settings = make_system(optimizer="adamw", weight_decay=0.1).settings
    model = Toy()
    groups = [{"params": list(model.body.parameters()), "weight_decay": 0.5}, {"params": list(model.top.parameters())}]
    decays = {p: g["weight_decay"] for g in build_optimizer(groups, settings).param_groups for p in g["params"]}
    assert [decays[p] for p in model.body.parameters()] == [0.5, 0.5]
    assert [decays[p] for p in model.top.parameters()] == [0.1, 0.0]


def test_gradients_are_clipped_to_a_norm():
    model = Toy()
    model.loss().backward()
    before = torch.cat([p.grad.flatten() for p in model.parameters()])
    clip(model, make_system().settings)
    assert torch.equal(torch.cat([p.grad.flatten() for p in model.parameters()]), before)
    limit = float(before.norm()) / 2
    clip(model, make_system(clip_gradients=limit).settings)
    torch.testing.assert_close(
        torch.cat([p.grad.flatten() for p in model.parameters()]), before / 2, atol=1e-6, rtol=1e-4
    )
