"""PCL's prototype term on SimCLR and on BYOL: the sum of two losses that are computed apart."""

import pytest
import torch
import torch.nn.functional as F

from conftest import make_system
from protonce.auto import DataSize
from protonce.errors import UserError
from protonce.methods.options.pcl_byol import PCLBYOLOptions
from steps import batch_of, options_at

INSTANCE = {"pcl+simclr": "simclr", "pcl+byol": "byol"}
OPTIONS = {"warmup_epochs": 1, "prototype_weight": 0.5, "negatives": 20, "bn_splits": 1}


def unit_features(n=48):
    return F.normalize(torch.randn(n, 16, generator=torch.Generator().manual_seed(5)), dim=1)


def systems(method, **options):
    """PCL on a system, and that system, with the same weights."""
    both = make_system(method, **OPTIONS, **options).train()
    instance = make_system(INSTANCE[method], bn_splits=1).train()
    instance.load_state_dict({k: v for k, v in both.state_dict().items() if k != "_extra_state"})
    return both, instance


def prototype_loss(system, batch, prototypes):
    """Eq. 10 with all prototypes, of both views and at both granularities, image by image."""
    total = 0.0
    for view in batch.views:
        v = system.query(view)
        for c in prototypes:
            logits = v @ c.centroids.T / c.concentration
            total = total + F.cross_entropy(logits, c.assignment[batch.index])
    return total / 4


@pytest.mark.parametrize("method", INSTANCE)
def test_the_loss_is_that_of_the_system_and_half_the_prototype_term(method):
    both, instance = systems(method)
    batch = batch_of(epoch=1)
    prototypes = both.e_step(1, unit_features)
    loss, terms = both.m_step(batch, prototypes)
    assert list(terms) == list(both.terms)
    expected = instance.m_step(batch, None)[0] + 0.5 * prototype_loss(instance, batch, prototypes)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
    loss.backward()
    expected.backward()
    for (name, ours), theirs in zip(both.named_parameters(), instance.parameters(), strict=True):
        if ours.requires_grad:
            torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=2e-3, msg=name)


@pytest.mark.parametrize("method", INSTANCE)
def test_in_warm_up_it_is_the_system(method):
    both, instance = systems(method)
    assert both.e_step(0, unit_features) is None
    (loss, terms), (expected, _) = (system.m_step(batch_of(), None) for system in (both, instance))
    torch.testing.assert_close(loss, expected)
    assert "prototype" not in terms


def test_the_prototype_term_alone():
    both, instance = systems("pcl+simclr", terms="prototypes")
    batch, prototypes = batch_of(epoch=1), both.e_step(1, unit_features)
    loss, terms = both.m_step(batch, prototypes)
    assert list(terms) == ["prototype"]
    torch.testing.assert_close(loss, 0.5 * prototype_loss(instance, batch, prototypes), atol=1e-5, rtol=1e-4)
    with pytest.raises(UserError, match="pcl\\+byol always has BYOL's prediction"):
        PCLBYOLOptions(terms="prototypes")


@pytest.mark.parametrize("method", INSTANCE)
def test_options_are_those_of_both(method):
    settings, options = options_at(DataSize(3000, 32), method, epochs=20)
    assert options.negatives == 16000
    trials = options.trials(settings, 3000)
    assert trials[0] == {}
    assert len({str(trial) for trial in trials}) == 6
