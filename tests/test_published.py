"""The paper's recipes against a plain loop of the published algorithm, written from the paper and what that code does.

Nothing of the program is used but the encoder as a module, the views as tensors and the random draws; of k-means the
assignment, which is checked to be the one that faiss finds from its own start.
"""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import protonce
from conftest import SMALL, stripes, train_until
from protonce import kmeans, randomness
from protonce.encoder import build
from protonce.methods.pcl import PCL
from protonce.prototypes import cluster

SIZES = {
    "backbone": "resnet10t",
    "width": 4,
    "dim": 16,
    "image_size": 16,
    "plain_resize": 20,
    "batch_size": 16,
    "clusters": [6, 20],
    "queue": 32,
    "negatives": 4,
    "epochs": 5,
    "warmup_epochs": 1,
}
# Images, steps an epoch, and "GPUs" of 8 images, each with its own batch norm and its own negative prototypes.
N, STEPS, PARTS = 48, 3, 2
RATES = {
    "pcl-v1": [0.03, 0.03, 0.03, 0.003, 0.0003],  # drops after 3/5 and 4/5, as after 120 and 160 of 200 epochs
    "pcl-v2": [0.015 * (1 + math.cos(math.pi * epoch / 5)) for epoch in range(5)],
}
TAU = {"pcl-v1": 0.1, "pcl-v2": 0.2}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """48 pictures, of which seven are the same."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i in range(N):
        pixels = stripes(rng, i % 3) if i % 7 else np.full((20, 20, 3), 250, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return folder


def concentration(features, assignment, tau):
    """Centroids and φ of each cluster, as published."""
    centroids, density = [], []
    for k in range(int(assignment.max()) + 1):
        members = features[assignment == k]
        centroids.append(members.mean(axis=0))
        distances = np.sqrt(((members - centroids[k]) ** 2).sum(axis=1))
        density.append(distances.mean() / np.log(len(members) + 10) if len(members) > 1 else None)
    largest = max(d for d in density if d is not None)
    density = np.array([largest if d is None else d for d in density])
    density = density.clip(np.percentile(density, 10), np.percentile(density, 90))
    return np.stack(centroids), tau * density / density.mean()


def check_k_means(features, assignment, centroids):
    """Each image is in the cluster of the nearest centroid."""
    squared = ((features[:, None] - centroids[None]) ** 2).sum(axis=2)
    assert (squared[np.arange(N), assignment] <= squared.min(axis=1) + 1e-6).all()


def check_start(features, assignment, k, seed):
    """The clusters are those of faiss with this seed; of the very features, because rounding may change clusters."""
    import faiss

    solver = faiss.Kmeans(features.shape[1], k, niter=20, nredo=5, seed=seed, min_points_per_centroid=1)
    solver.train(features)
    theirs = solver.index.search(features, 1)[1][:, 0]
    one = np.sort(np.unique(features, axis=0, return_index=True)[1])  # of identical images, which faiss may part
    assert np.array_equal(*(found[one, None] == found[one] for found in (assignment, theirs)))


def instance_loss(q, k, queue, tau):
    logits = torch.cat([(q * k).sum(dim=1, keepdim=True), q @ queue.T], dim=1) / tau
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def prototype_loss(q, index, clusterings, draw, r):
    loss = 0.0
    for assignment, centroids, density in clusterings:
        positive = assignment[index].tolist()
        negative = []
        for j in torch.randperm(len(centroids), generator=draw).tolist():
            if j not in positive and len(negative) < r:
                negative.append(j)
        selected = positive + negative
        prototypes = F.normalize(torch.from_numpy(centroids[selected]).float(), dim=1)
        logits = q @ prototypes.T / torch.from_numpy(density[selected]).float()
        loss = loss + F.cross_entropy(logits, torch.arange(len(q)))
    return loss / len(clusterings)


@pytest.mark.parametrize("recipe", ["pcl-v1", "pcl-v2"])
def test_training_is_the_published_algorithm(pictures, tmp_path, monkeypatch, recipe):
    """Step by step from the same weights, because a small ResNet amplifies rounding; queue and velocity are its own."""
    seen, after, clustered, m_step, after_step = [], [], [], PCL.m_step, PCL.after_step

    def note(self, batch, state):
        loss, terms = m_step(self, batch, state)
        seen.append((batch.views, batch.index, state, float(loss.detach())))
        return loss, terms

    def snapshot(self, progress):
        after_step(self, progress)
        after.append((copy.deepcopy(self.query.state_dict()), copy.deepcopy(self.momentum.state_dict())))

    def keep(features, *rest):
        clustered.append(features.numpy().copy())
        return cluster(features, *rest)

    monkeypatch.setattr(PCL, "m_step", note)
    monkeypatch.setattr(PCL, "after_step", snapshot)
    monkeypatch.setattr("protonce.methods.pcl.cluster", keep)
    run = protonce.train(pictures, tmp_path / "run", recipe=recipe, device="cpu", quiet=True, **SIZES)
    loader, tau = run.loader(pictures), TAU[recipe]
    plain = torch.cat([loader.views.plain(samples) for samples in loader.plain(N)])  # (n, 3, 16, 16)

    theta = build(run.settings).train()
    theta_ = copy.deepcopy(theta)  # θ' = θ
    norms = [m.weight for m in theta.backbone.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert all((weight == 1).all() for weight in norms)  # torchvision's
    velocity = [torch.zeros_like(p) for p in theta.parameters()]
    queue = F.normalize(torch.randn(32, 16, generator=randomness.generator(0, "queue")), dim=1)
    pointer, kinds = 0, set()
    for epoch in range(5):
        clusterings = []
        if epoch >= 1:
            theta_.eval()
            with torch.no_grad():
                features = theta_(plain).double().numpy()  # V' = f_θ'(X)
            theta_.train()
            np.testing.assert_allclose(clustered[epoch - 1], features, atol=1e-5)
            for seed, found in enumerate(seen[epoch * STEPS][2]):
                assignment = found.assignment.numpy()
                if run.settings.kmeans_engine == "faiss":
                    check_start(clustered[epoch - 1], assignment, run.settings.clusters[seed], seed)
                centroids, density = concentration(features, assignment, tau)
                check_k_means(features, assignment, centroids)
                clusterings.append((assignment, centroids, density))
                for k in range(len(centroids)):
                    members = features[assignment == k]
                    kinds.add("one" if len(members) == 1 else "alike" if np.ptp(members, axis=0).max() == 0 else "some")
        for step in range(STEPS):
            (x_q, x_k), index, _, published = seen[epoch * STEPS + step]
            before = copy.deepcopy((theta, theta_))
            with torch.no_grad():
                for p, p_ in zip(theta.parameters(), theta_.parameters(), strict=True):
                    p_.copy_(0.999 * p_ + 0.001 * p)  # at the beginning of a step, the first too
            q = torch.cat([theta(part) for part in x_q.chunk(PARTS)])
            with torch.no_grad():
                order = torch.randperm(16, generator=randomness.generator(0, "shuffle", epoch, step))
                shuffled = torch.cat([theta_(part) for part in x_k[order].chunk(PARTS)])
                k = torch.empty_like(shuffled)
                k[order] = shuffled
            loss = instance_loss(q, k, queue.clone(), tau)
            queue[pointer : pointer + 16] = k  # after the comparison
            pointer = (pointer + 16) % 32
            if clusterings:
                draw = randomness.generator(0, "negatives", epoch, step)
                for rows in torch.arange(16).chunk(PARTS):  # each GPU has prototypes for its own images
                    loss = loss + prototype_loss(q[rows], index[rows], clusterings, draw, r=4) / PARTS
                    kinds |= {"mates"} if len(set(clusterings[1][0][index[rows]])) < 8 else set()
            assert published == pytest.approx(float(loss.detach()), rel=1e-5), (epoch, step)
            theta.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p, u in zip(theta.parameters(), velocity, strict=True):
                    u.mul_(0.9).add_(p.grad + 1e-4 * p)
                    p.sub_(RATES[recipe][epoch] * u)
            both = after[epoch * STEPS + step]
            for ours, theirs, old, rounding in zip(both, (theta, theta_), before, (1e-4, 1e-2), strict=True):
                gone, error = distance(theirs, old.state_dict()), distance(theirs, ours)
                first = theirs is theta_ and not epoch + step  # in which θ' = θ; the twin moves little, anyway
                assert error < (1e-4 if first else rounding * gone), (epoch, step)
                for name, value in theirs.named_buffers():  # running statistics
                    torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5)
                theirs.load_state_dict(ours)
    assert kinds == {"one", "alike", "some", "mates"}


@torch.no_grad()
def distance(encoder, state):
    """Between the weights of an encoder and others."""
    return math.sqrt(sum(float((p - state[name]).double().square().sum()) for name, p in encoder.named_parameters()))


@pytest.mark.parametrize("stop", [(1, 2), (1, None), (2, None)])
def test_a_published_run_is_resumed_to_the_byte(pictures, tmp_path, monkeypatch, stop):
    """Whatever is to join the queue has joined it when a checkpoint is saved, and the twin is yet to be updated."""
    queue = {"queue": 24, "queue_push": "after", "queue_start": "random", "own_keys": "negatives"}
    options = {"negative_prototypes": "published-parts", "negatives": 2, "phi_of_identical": "smallest"}
    moments = {"twin_update": "next", "kmeans_init": "published"}
    settings = {**SMALL, **queue, **options, **moments, "warmup_epochs": 0, "epochs": 2, "quiet": True}
    whole = protonce.train(pictures, tmp_path / "whole", **settings)
    train_until(stop, monkeypatch, pictures, tmp_path / "run", settings)
    run = protonce.train(pictures, tmp_path / "run", resume=True, quiet=True)
    for name in ("encoder.safetensors", "prototypes.npz"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_a_cluster_without_images_is_a_negative_and_nothing_else(pictures, tmp_path, monkeypatch):
    """k-means pretends to end with a centroid that is far from all features."""
    lloyd, seen, m_step = kmeans._lloyd_torch, [], PCL.m_step

    def away(*words):
        centroids = lloyd(*words)
        centroids[1] = 99.0
        return centroids

    monkeypatch.setattr(kmeans, "_lloyd_torch", away)
    monkeypatch.setattr(PCL, "m_step", lambda self, batch, state: seen.append(state) or m_step(self, batch, state))
    settings = {**SMALL, "kmeans_engine": "torch", "kmeans_init": "published", "warmup_epochs": 0, "epochs": 1}
    run = protonce.train(pictures, tmp_path / "run", quiet=True, negatives=2, **settings)
    assert [len(c.centroids) for c in seen[0]] == [4, 8]
    assert all(int((c.assignment == 1).sum()) == 0 for c in seen[0])
    assert [len(c.centroids) for c in run.prototypes] == [3, 7]
    assert all(torch.bincount(c.assignment).min() > 0 for c in run.prototypes)
    assert np.isfinite(run.metrics[0]["loss"])
