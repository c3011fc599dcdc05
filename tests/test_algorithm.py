"""Algorithm 1 from beginning to end: `protonce.train` against a plain loop of the paper, written here."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

import protonce
from conftest import SMALL
from protonce import randomness
from protonce.encoder import build
from protonce.prototypes import e_step

M, TAU, ALPHA, WEIGHT, QUEUE, LR, DECAY, B = 0.9, 0.2, 10.0, 0.5, 40, 0.1, 0.01, 16


def network():
    """No batch norm, so that nothing is shuffled."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def proto_nce(v, v_, index, queue, prototypes):
    """Eq. 11, query by query: InfoNCE over the queue, and the prototype term averaged over granularities."""
    total = 0.0
    for i, image in enumerate(index.tolist()):
        others = [torch.dot(v[i], key) / TAU for owner, key in queue if owner != image]
        total = total - F.log_softmax(torch.stack([torch.dot(v[i], v_[i]) / TAU, *others]), dim=0)[0]
        for c in prototypes:
            scores = torch.stack(
                [torch.dot(v[i], c_j) / phi for c_j, phi in zip(c.centroids, c.concentration, strict=True)]
            )
            own = int(c.assignment[image])
            total = total - WEIGHT / len(prototypes) * F.log_softmax(scores, dim=0)[own]
    return total / len(index)


def test_training_is_algorithm_1(photos, tmp_path):
    options = {"method": "pcl", "warmup_epochs": 1, "twin_momentum": M, "queue": QUEUE, "prototype_weight": WEIGHT}
    optimizer = {"lr": LR, "weight_decay": DECAY, "sgd_momentum": 0.9, "tau": TAU, "alpha": ALPHA}
    settings = {**SMALL, **options, **optimizer, "epochs": 3, "kmeans_engine": "torch", "quiet": True}
    run = protonce.train(photos, tmp_path / "run", encoder=network(), **settings)
    loader = protonce.load(run.path).loader(photos)

    plain = torch.cat([loader.views.plain(samples) for samples in loader.plain(48)])  # (n, 3, 16, 16)
    theta = build(run.settings, network(), plain[:2])
    theta_ = copy.deepcopy(theta)  # θ' = θ
    velocity = [torch.zeros_like(p) for p in theta.parameters()]
    queue, steps = [], 48 // B
    for epoch in range(3):
        prototypes = []
        if epoch >= 1:
            with torch.no_grad():
                features = theta_(plain)  # V' = f_θ'(X)
            generator = randomness.generator(0, "k-means", epoch)
            prototypes = e_step(features, [4, 8], tau=TAU, alpha=ALPHA, generator=generator)  # C^m, φ_m
        order = torch.randperm(48, generator=randomness.generator(0, "order", epoch))
        for step, samples in enumerate(loader.samples(order, epoch, B)):
            x, x_ = loader.views.train(samples)
            v = theta(x)
            with torch.no_grad():
                v_ = theta_(x_)
            queue = [*queue, *zip(samples.index.tolist(), v_, strict=True)][-QUEUE:]
            theta.zero_grad()
            proto_nce(v, v_, samples.index, queue, prototypes).backward()
            rate = LR * 0.5 * (1 + math.cos(math.pi * (epoch + step / steps) / 3))
            with torch.no_grad():
                for p, p_, u in zip(theta.parameters(), theta_.parameters(), velocity, strict=True):
                    u.mul_(0.9).add_(p.grad + DECAY * p)
                    p.sub_(rate * u)  # θ = SGD(L, θ)
                    p_.copy_(M * p_ + (1 - M) * p)  # θ' = m θ' + (1 - m) θ
    ours, ours_ = protonce.load(run.path, encoder=network()).encoders
    torch.testing.assert_close(ours.state_dict(), theta.state_dict(), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(ours_.state_dict(), theta_.state_dict(), atol=1e-4, rtol=1e-3)
    moved = build(run.settings, network(), plain[:2]).state_dict()
    assert max(float((ours.state_dict()[name] - value).abs().max()) for name, value in moved.items()) > 0.005
