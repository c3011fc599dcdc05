"""DeepCluster: whitening, draws over the clusters, a classifier made anew, and its loss."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA

from conftest import make_system
from protonce.auto import pseudo_classes
from protonce.context import Progress
from protonce.kmeans import k_means
from protonce.methods.base import Batch
from protonce.methods.deepcluster import uniform_draws, whiten


class Given:
    """Features of all images, as an E-step gets them."""

    def __init__(self, pooled):
        self.pooled = pooled

    def backbone(self):
        return self.pooled


def features(n=48, dim=32, seed=3):
    """Correlated features of very different variance, away from the origin."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.logspace(0, -2, dim)
    return 5 + torch.randn(n, dim, generator=generator) * spread @ torch.randn(dim, dim, generator=generator)


def test_whitening_is_sklearns_up_to_sign():
    x = features(n=5000, dim=20)  # more than one block
    ours = whiten(x, 7).double()
    theirs = torch.from_numpy(PCA(7, whiten=True, svd_solver="full").fit_transform(x.double().numpy()))
    signs = (ours * theirs).sum(dim=0).sign()
    torch.testing.assert_close(ours, theirs * signs, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(torch.cov(ours.T), torch.eye(7, dtype=torch.double), atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.mean(dim=0), torch.zeros(7, dtype=torch.double), atol=1e-4, rtol=0)


def test_directions_without_variance_are_not_scaled_up():
    x = features(dim=6)
    same = torch.cat([x, x[:, :2], torch.ones(len(x), 3)], dim=1)  # two twice, three constant: still rank 6
    white = whiten(same, 11)
    assert white.shape == (48, 6)
    torch.testing.assert_close(torch.cov(white.T), torch.eye(6), atol=1e-3, rtol=0)
    assert whiten(features(n=5), 32).shape == (5, 4)
    assert whiten(torch.ones(5, 3), 2).shape == (5, 0)


def test_as_many_images_of_every_cluster_are_drawn():
    """Clusters of 1, 4 and 15 images: 20 // 3 + 1 = 7 of each, of which 20 are kept."""
    labels = torch.tensor([2] * 15 + [0] + [1] * 4)
    drawn = uniform_draws(labels, 20, torch.Generator().manual_seed(0))
    counts = labels[drawn].bincount(minlength=3)
    assert sorted(counts.tolist()) == [6, 7, 7]
    of_largest = drawn[labels[drawn] == 2]
    assert len(of_largest.unique()) == len(of_largest), "no image twice where there are enough"
    assert set(drawn[labels[drawn] == 0].tolist()) == {15}, "an image that is alone is repeated"
    assert not torch.equal(drawn, drawn.sort().values)
    twice = uniform_draws(labels, 2000, torch.Generator().manual_seed(1)).bincount(minlength=20) / 2000
    torch.testing.assert_close(twice, 1 / (3 * labels.bincount()[labels]), atol=0.02, rtol=0)


def test_an_epoch_draws_over_the_clusters():
    system = make_system("deepcluster", k=4, batch_size=10)
    state = torch.tensor([0] * 30 + [1] * 10 + [2] * 7 + [3])
    order = system.sampler(0, state)
    assert order.shape == (4, 10)
    counts = state[order.flatten()].bincount(minlength=4)  # 13 of each, of 52 the first 40
    assert counts.sum() == 40
    assert counts.min() >= 1
    assert counts.max() <= 13
    assert torch.equal(order, system.sampler(0, state))
    assert not torch.equal(order, system.sampler(1, state))


def test_pseudo_labels_are_k_means_of_whitened_unit_features_and_the_classifier_is_new():
    system = make_system("deepcluster", k=5, pca=8, reassign=1)
    pooled = features()
    first = system.classifier.weight.detach().clone()
    labels = system.e_step(0, Given(pooled))
    x = PCA(8, whiten=True, svd_solver="full").fit_transform(pooled.double().numpy())
    x = torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True)).float()
    means = torch.stack([x[labels == c].mean(dim=0) for c in range(5)])
    moved = (torch.cdist(x, means).argmin(dim=1) != labels).float().mean()
    assert moved <= 0.1, "20 iterations of Lloyd end near a fixed point"
    best = k_means(x, 5, generator=torch.Generator().manual_seed(0), starts=20, iterations=50).objective
    assert (x - means[labels]).square().sum() < 1.2 * best

    new = system.classifier.weight.detach().clone()
    assert not torch.equal(first, new)
    assert new.std() == pytest.approx(0.01, rel=0.3)
    assert not system.classifier.bias.any()
    system.e_step(1, Given(pooled))
    assert not torch.equal(new, system.classifier.weight), "each epoch has its own"
    system.e_step(0, Given(pooled))
    assert torch.equal(new, system.classifier.weight), "drawn by seed and epoch alone"


def test_labels_and_classifier_are_kept_between_two_clusterings():
    system = make_system("deepcluster", k=5, reassign=3)
    labels = system.e_step(0, Given(features())).clone()
    weight = system.classifier.weight.detach().clone()
    for epoch in (1, 2):
        assert torch.equal(system.e_step(epoch, None), labels), "without a pass over the data"
    assert torch.equal(system.classifier.weight, weight)
    assert not torch.equal(system.e_step(3, Given(features(seed=4))), labels)
    assert not torch.equal(system.classifier.weight, weight)
    saved = system.state_dict()
    assert torch.equal(saved["labels"], system.labels), "a checkpoint has them"


def test_the_loss_is_cross_entropy_with_the_clusters():
    system = make_system("deepcluster", k=6).eval()
    state = torch.arange(48) % 5  # five of the six were found
    index = torch.tensor([3, 17, 4, 40])
    (x,) = views = (torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1)),)
    loss, terms = system.m_step(Batch(views, index, Progress(0, 0, 3, 3)), state)
    scores = system.query.features(x) @ system.classifier.weight.T + system.classifier.bias
    expected = F.cross_entropy(scores, torch.tensor([3, 2, 4, 0]))
    torch.testing.assert_close(loss, expected)
    for p in (system.classifier.weight, system.query.backbone.conv1.weight):
        torch.testing.assert_close(
            *(torch.autograd.grad(value, p, retain_graph=True)[0] for value in (loss, expected)), atol=1e-6, rtol=1e-3
        )
    assert terms["cluster"].chance == pytest.approx(np.log(6))


def test_clusters_hold_enough_images():
    assert pseudo_classes(1_281_167, 10_000) == 10_000
    for n in (8, 100, 500, 3000, 100_000):
        assert 2 <= pseudo_classes(n, 10_000) <= max(n / 10, 2)
