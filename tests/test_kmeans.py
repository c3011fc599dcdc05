"""k-means: the two engines agree, and every odd input has a defined result."""

import numpy as np
import pytest
import torch

from protonce.auto import DataSize, Machine, resolve
from protonce.config import Settings
from protonce.data.loader import Loader
from protonce.data.sources import open_source
from protonce.data.views import ImageViews
from protonce.encoder import build
from protonce.features import extract
from protonce.kmeans import first_of_each, k_means, nearest

ENGINES = [
    "torch",
    pytest.param("faiss", marks=pytest.mark.skipif("sys.platform != 'linux'", reason="faiss is Linux's")),
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def blobs(n=600, k=12, d=16, seed=0):
    centres = 3 * torch.randn(k, d, generator=generator(seed))
    which = torch.arange(n) % k
    return centres[which] + torch.randn(n, d, generator=generator(seed + 1)), which


def naive_lloyd(points, centroids, iterations):
    """Lloyd's algorithm, point by point; for starts from which no cluster runs empty."""
    points, centroids = points.double().numpy(), centroids.double().numpy().copy()
    for _ in range(iterations):
        which = np.array([np.argmin([((p - c) ** 2).sum() for c in centroids]) for p in points])
        centroids = np.stack([points[which == c].mean(axis=0) for c in range(len(centroids))])
    which = np.array([np.argmin([((p - c) ** 2).sum() for c in centroids]) for p in points])
    means = np.stack([points[which == c].mean(axis=0) for c in range(len(centroids))])
    return which, ((points - means[which]) ** 2).sum()


@pytest.mark.parametrize("engine", ENGINES)
def test_is_lloyds_algorithm(engine):
    points, _ = blobs(n=120, k=4)
    start = points[:4]
    which, objective = naive_lloyd(points, start, 3)
    found = k_means(points, 4, generator=generator(), iterations=3, init=start, engine=engine)
    assert found.assignment.tolist() == which.tolist()
    assert found.objective == pytest.approx(objective, rel=1e-4)


def test_engines_agree_on_real_features(shared_data):
    """An encoder's features of real photographs, from the same start: objectives within 0.5 %."""
    source = open_source(shared_data / "cifar10" / "test.zip", limit=2000)
    machine = Machine("cpu", bfloat16=False, faiss=True, cores=1)
    settings = resolve(Settings(backbone="resnet10t", width=8), DataSize(2000, 32), machine)
    points = extract(build(settings).eval(), Loader(source, ImageViews(settings)))
    for k in (20, 200):
        start = points[torch.randperm(len(points), generator=generator(k))[:k]]
        objectives = [
            k_means(points, k, generator=generator(), iterations=20, init=start, engine=e).objective
            for e in ("torch", "faiss")
        ]
        assert objectives[0] == pytest.approx(objectives[1], rel=0.005)


@pytest.mark.parametrize("engine", ENGINES)
def test_finds_separated_groups(engine):
    points, which = blobs(k=5)
    found = k_means(points, 5, generator=generator(), starts=10, engine=engine)
    pairs = set(zip(which.tolist(), found.assignment.tolist(), strict=True))
    assert len(pairs) == 5


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("points", "k", "expected"),
    [
        (torch.randn(5, 3, generator=generator()), 9, 5),
        (torch.randn(1, 3, generator=generator()), 4, 1),
        (torch.ones(20, 3), 4, 1),
        (torch.eye(3).repeat(10, 1), 3, 3),
        (torch.eye(3).repeat(10, 1), 30, 3),
    ],
    ids=[
        "more clusters than points",
        "one point",
        "all alike",
        "duplicates",
        "more clusters than distinct points",
    ],
)
def test_odd_inputs_have_a_defined_result(engine, points, k, expected):
    found = k_means(points, k, generator=generator(), engine=engine)
    assert len(found.means) == expected
    assert found.assignment.bincount().min() > 0
    assert found.objective == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_empty_clusters_are_filled(engine):
    """Started with three centroids far from every point, k-means still uses all of them."""
    points, _ = blobs(k=6)
    start = torch.cat([points[:3], points[:3] + 1000])
    found = k_means(points, 6, generator=generator(), init=start, engine=engine)
    assert len(found.means) == 6


def test_the_draw_is_a_function_of_the_generator():
    points, _ = blobs()
    first, again, other = (k_means(points, 12, generator=generator(seed), iterations=1) for seed in (0, 0, 1))
    assert torch.equal(first.assignment, again.assignment)
    assert not torch.equal(first.assignment, other.assignment)


def test_more_starts_are_never_worse():
    points, _ = blobs(k=30)
    one, many = (k_means(points, 30, generator=generator(), starts=s, iterations=5).objective for s in (1, 8))
    assert many <= one


def test_a_sample_fits_and_all_are_assigned():
    points, _ = blobs()
    found = k_means(points, 12, generator=generator(), sample=200, starts=5)
    assert len(found.assignment) == 600
    full = k_means(points, 12, generator=generator(), starts=5)
    assert found.objective < 1.5 * full.objective


def test_nearest_in_blocks_is_nearest(monkeypatch):
    points, _ = blobs(n=100)
    distance, which = nearest(points, points[:7])
    brute = torch.cdist(points.double(), points[:7].double()).square().min(dim=1)
    torch.testing.assert_close(distance.double(), brute.values, atol=1e-3, rtol=1e-4)
    assert torch.equal(which, brute.indices)
    monkeypatch.setattr("protonce.kmeans._BLOCK", 50)
    assert torch.equal(nearest(points, points[:7])[1], which)


def test_first_of_each():
    points = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [2.0, 1.0], [3.0, 4.0]])
    assert first_of_each(points).tolist() == [0, 1, 3]


@pytest.mark.parametrize(("shape", "k"), [((0, 3), 2), ((5, 3), 0), ((5,), 2)])
def test_what_cannot_be_clustered_is_refused(shape, k):
    with pytest.raises(ValueError, match="k-means needs"):
        k_means(torch.zeros(shape), k, generator=generator())
