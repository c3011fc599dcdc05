"""BYOL: the loss by its paper and by a peer, the target network, its schedule, and the two kinds of views."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from conftest import make_system
from protonce.auto import DataSize
from protonce.config import read_recipe
from protonce.methods.byol import BYOL, regression_loss
from steps import IMAGENET, auto_of_recipe, batch_of, fit, options_at


def rows(seed, n=6, d=8):
    return torch.randn(n, d, dtype=torch.double, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def test_the_loss_is_eq_2_and_a_peers():
    pytest.importorskip("lightly")
    from lightly.loss import NegativeCosineSimilarity

    prediction, target = rows(0), rows(1)
    by_hand = sum(
        ((p / p.square().sum().sqrt() - z / z.square().sum().sqrt()) ** 2).sum()
        for p, z in zip(prediction, target, strict=True)
    ) / len(target)
    for theirs in (by_hand, 2 + 2 * NegativeCosineSimilarity()(prediction, target)):
        ours = regression_loss(prediction, target)
        torch.testing.assert_close(ours, theirs)
        inputs = (prediction, target)
        torch.testing.assert_close(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs))


def test_an_m_step_is_the_symmetric_loss_and_the_target_takes_no_gradient():
    system, batch = make_system("byol", bn_splits=1).train(), batch_of()
    online, target = copy.deepcopy(system), copy.deepcopy(system.momentum)
    loss, terms = system.m_step(batch, None)
    loss.backward()
    expected = 0.0
    for x, other in (batch.views, batch.views[::-1]):
        q = online.predictor(online.query.head(online.query.backbone(x)))  # z not normalised
        z = target.head(target.backbone(other)).detach()
        expected = expected + (F.normalize(q, dim=1) - F.normalize(z, dim=1)).square().sum(dim=1).mean()
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
    assert terms["prediction"].chance is None
    for name in ("query", "predictor"):
        for ours, theirs in zip(getattr(system, name).parameters(), getattr(online, name).parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-3)
    assert all(p.grad is None for p in system.momentum.parameters())


def test_the_target_follows_with_a_momentum_that_rises_to_one():
    pytest.importorskip("lightly")
    from lightly.models.utils import update_momentum

    system = make_system("byol", twin_momentum=0.8, epochs=2).train()
    for k in range(6):
        online, target = copy.deepcopy(system.query), copy.deepcopy(system.momentum)
        with torch.no_grad():
            for p in (*system.query.parameters(), *online.parameters()):
                p.add_(torch.ones_like(p))
        system.after_step(batch_of(epoch=k // 3, step=k % 3, steps=3, epochs=2).progress)
        update_momentum(online, target, m=1 - 0.2 * (math.cos(math.pi * k / 6) + 1) / 2)
        for ours, theirs in zip(system.momentum.parameters(), target.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_training_makes_the_loss_fall_and_moves_encoder_predictor_and_target():
    system = make_system("byol", head="mlp-big")
    before = copy.deepcopy(system.state_dict())
    losses = fit(system, [batch_of(step=step, epochs=3) for step in range(8)], lr=0.2)
    assert losses[-1] < losses[0] - 0.2
    for name in ("query.head.0", "query.head.3", "predictor.0", "predictor.3", "momentum.head.0"):
        assert not torch.equal(before[f"{name}.weight"], system.state_dict()[f"{name}.weight"]), name


def test_only_the_second_view_is_solarised_and_neither_is_where_images_are_not_blurred():
    for blur, version, second in ((1.0, "v2", (0.1, 0.2)), (0.0, "v2", (0.0, 0.0)), (1.0, "v1", (0.0, 0.0))):
        settings, options = options_at(DataSize(1000, 96), "byol", blur_p=blur, views=version)
        first, other = BYOL.views(settings, options)
        assert (first.blur_p, first.solarise_p) == (None, 0.0), "the settings'"
        assert (other.blur_p, other.solarise_p) == pytest.approx(second)


def test_the_recipe_is_the_papers_and_auto_gives_it():
    recipe = read_recipe("byol")
    assert recipe["lr"] == pytest.approx(0.2 * recipe["batch_size"] / 256)
    own, automatic = auto_of_recipe("byol")
    assert own == pytest.approx(automatic)
    settings, options = options_at(IMAGENET, **recipe)
    trials = options.trials(settings, IMAGENET.n)
    assert trials[0] == {}
    assert len({str(trial) for trial in trials}) == 6
    _, options = options_at(DataSize(1000, 32), "byol", epochs=20, batch_size=32)
    assert options.twin_momentum == 0.9
