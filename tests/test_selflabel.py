"""SeLa: labels of all images at its schedule, several heads, and the loss."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conftest import make_system
from protonce.context import Progress
from protonce.methods import selflabel
from protonce.methods.base import Batch
from protonce.methods.selflabel import label_epochs, log_shares
from protonce.transport import most_likely, sinkhorn


class Given:
    """Features of all images, as an E-step gets them."""

    def __init__(self, pooled):
        self.pooled = pooled

    def backbone(self):
        return self.pooled


def features(system, seed=3):
    return torch.randn(system.n, system.query.feature_dim, generator=torch.Generator().manual_seed(seed))


def test_labels_are_computed_often_at_first_and_rarely_later():
    """The published times for 400 epochs are (400 + 1.01) (i / 99)², the last after the end."""
    times = (400 + 1.01) * np.linspace(0, 1, 100) ** 2
    epochs = label_epochs(400, 100)
    assert epochs == {int(t) for t in times[:-1]}
    assert 80 <= len(epochs) <= 100
    early, late = (sum(low <= e < low + 100 for e in epochs) for low in (0, 300))
    assert early > 2 * late
    assert 0 in epochs
    assert label_epochs(12, 1) == {0}
    assert label_epochs(3, 10) == {0, 1, 2}
    assert label_epochs(1, 1) == {0}


def test_every_head_labels_all_images_in_equal_shares(monkeypatch):
    torch.manual_seed(0)
    system = make_system("selflabel", k=4, heads=3, epochs=20, optimizations=5, size=(400, 20))
    monkeypatch.setattr(selflabel, "BLOCK", 64)
    pooled = features(system)
    labels = system.e_step(0, Given(pooled)).clone()
    assert labels.shape == (3, 400)
    for h in range(3):
        weight, bias = system.heads.weight[4 * h : 4 * h + 4], system.heads.bias[4 * h : 4 * h + 4]
        log_p = (pooled @ weight.T + bias).log_softmax(dim=1).detach()
        torch.testing.assert_close(log_shares(pooled, weight, bias), log_p)
        expected = most_likely(log_p, 25.0, sinkhorn(log_p, 25.0))
        assert (expected == labels[h]).float().mean() > 0.99
        assert (labels[h].bincount(minlength=4) - 100).abs().max() <= 20
    assert len({tuple(row.tolist()) for row in labels}) == 3, "each head has labels of its own"


def test_labels_are_kept_between_two_optimisations():
    system = make_system("selflabel", k=4, heads=2, epochs=20, optimizations=4)
    due = label_epochs(20, 4)
    assert due == {0, 2, 9}
    labels = system.e_step(0, Given(features(system))).clone()
    assert torch.equal(system.e_step(1, None), labels), "without a pass over the data"
    assert not torch.equal(system.e_step(2, Given(features(system, seed=4))), labels)
    assert torch.equal(system.state_dict()["labels"], system.labels), "a checkpoint has them"


def test_the_loss_is_the_mean_of_cross_entropies_of_the_heads():
    """Head by head; forward and gradient."""
    system = make_system("selflabel", k=4, heads=3).eval()
    state = torch.stack([torch.arange(48) % 4, (torch.arange(48) + 1) % 4, torch.arange(48) // 12])
    index = torch.tensor([3, 17, 4, 40, 9])
    (x,) = views = (torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1)),)
    loss, terms = system.m_step(Batch(views, index, Progress(0, 0, 3, 3)), state)
    pooled = system.query.features(x)
    losses = []
    for h in range(3):
        scores = pooled @ system.heads.weight[4 * h : 4 * h + 4].T + system.heads.bias[4 * h : 4 * h + 4]
        losses.append(F.cross_entropy(scores, state[h, index]))
    expected = sum(losses) / 3
    torch.testing.assert_close(loss, expected)
    for p in (system.heads.weight, system.query.backbone.conv1.weight):
        torch.testing.assert_close(
            *(torch.autograd.grad(value, p, retain_graph=True)[0] for value in (loss, expected)), atol=1e-6, rtol=1e-3
        )
    assert terms["cluster"].chance == pytest.approx(np.log(4))
