"""SimCLR: NT-Xent by its paper's algorithm and by a peer, over the views of all ranks."""

import math

import pytest
import torch
import torch.nn.functional as F

from conftest import make_system
from protonce import randomness
from protonce.config import read_recipe
from protonce.encoder import build
from protonce.losses import nce
from protonce.methods.simclr import nt_xent, nt_xent_logits
from steps import IMAGENET, batch_of, fit, options_at


def rows(n, d=8, seed=0):
    """Outputs of a head, not yet normalised."""
    return torch.randn(n, d, dtype=torch.double, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def unit(x):
    return F.normalize(x, dim=1)


def algorithm_1(z, z_, tau):
    """The paper's loop: z_{2k-1} and z_{2k} are the views of image k."""
    views = torch.stack([z, z_], dim=1).flatten(0, 1)  # (2N, d)
    s = F.cosine_similarity(views[:, None], views[None], dim=2)

    def loss(i, j):
        others = [torch.exp(s[i, k] / tau) for k in range(len(views)) if k != i]
        return -torch.log(torch.exp(s[i, j] / tau) / sum(others))

    return sum(loss(2 * k, 2 * k + 1) + loss(2 * k + 1, 2 * k) for k in range(len(z))) / len(views)


@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_nt_xent_is_algorithm_1_and_a_peers(tau):
    pytest.importorskip("lightly")
    from lightly.loss import NTXentLoss

    heads = rows(6), rows(6, seed=1)
    for theirs in (algorithm_1(*heads, tau), NTXentLoss(temperature=tau)(*heads)):
        ours = nt_xent(*map(unit, heads), tau)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(torch.autograd.grad(ours, heads), torch.autograd.grad(theirs, heads))


def test_nt_xent_of_parts_is_that_of_the_batch():
    """Each rank has its own queries against all views: the mean over their rows is the loss of the batch."""
    z, z_ = rows(5), rows(5, seed=1)
    index, views = torch.tensor([7, 3, 9, 0, 4]), torch.cat([z, z_])
    whole, total = nt_xent(z, z_, 0.2), 0.0
    for part in (slice(0, 3), slice(3, 5)):
        logits = nt_xent_logits(z[part], z_[part], index[part], views, index.repeat(2), 0.2)
        assert torch.isinf(logits).sum(dim=1).tolist() == [2] * len(logits), "both views of the query's own image"
        total = total + nce(logits) * len(logits) / 10
    torch.testing.assert_close(total, whole)
    torch.testing.assert_close(torch.autograd.grad(total, (z, z_)), torch.autograd.grad(whole, (z, z_)))


@pytest.mark.parametrize("splits", [1, 4])
def test_an_m_step_is_nt_xent_with_batch_norm_in_two_orders(splits):
    system, batch = make_system("simclr", bn_splits=splits).train(), batch_of()
    loss, terms = system.m_step(batch, None)
    loss.backward()

    theta, (x, x_) = build(system.settings).train(), batch.views
    order = torch.arange(16)
    if splits > 1:
        order = torch.randperm(16, generator=randomness.generator(system.settings.seed, "shuffle", 0, 0))
    z = torch.cat([theta(part) for part in x.tensor_split(splits)])
    shuffled = torch.cat([theta(part) for part in x_[order].tensor_split(splits)])
    expected = algorithm_1(z, torch.stack([shuffled[(order == i).nonzero()[0, 0]] for i in range(16)]), 0.2)
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(system.query.parameters(), theta.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-3)
    assert float(terms["instance"].chance) == pytest.approx(math.log(31))
    assert 0 <= float(terms["instance"].accuracy) <= 1


def test_training_makes_the_loss_fall():
    losses = fit(make_system("simclr", head="mlp-bn"), [batch_of()] * 8)
    assert losses[-1] < losses[0] - 0.5


def test_the_recipe_is_the_papers():
    recipe = read_recipe("simclr")
    assert recipe["lr"] == pytest.approx(0.3 * recipe["batch_size"] / 256)
    settings, options = options_at(IMAGENET, **recipe)
    assert all(getattr(settings, name) == value for name, value in recipe.items())
    trials = options.trials(settings, IMAGENET.n)
    assert trials[0] == {}
    assert len({str(trial) for trial in trials}) == 6
