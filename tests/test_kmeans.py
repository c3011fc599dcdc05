"""k-means: the two engines agree, and every odd input has a defined result."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from protonce import kmeans
from protonce.auto import DataSize, Machine, resolve
from protonce.config import Settings
from protonce.data.loader import Loader
from protonce.data.sources import open_source
from protonce.data.views import ImageViews
from protonce.devices import look_at_machine
from protonce.encoder import build
from protonce.features import extract
from protonce.kmeans import KMeans, first_of_each, k_means, nearest, originals
from protonce.ranks import Ranks

linux = pytest.mark.skipif("sys.platform != 'linux'", reason="faiss is Linux's")
ENGINES = ["torch", pytest.param("faiss", marks=linux)]


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


def test_the_start_depends_only_on_the_generator():
    points, _ = blobs()
    first, again, other = (k_means(points, 12, generator=generator(seed), iterations=1) for seed in (0, 0, 1))
    assert torch.equal(first.assignment, again.assignment)
    assert not torch.equal(first.assignment, other.assignment)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_best_of_several_starts_is_returned(engine):
    """The starts of one call are those of consecutive calls with the same generator."""
    points, _ = blobs(k=30)
    options = {"iterations": 5, "engine": engine}
    draws = generator()
    singles = [k_means(points, 30, generator=draws, **options) for _ in range(8)]
    best = min(singles, key=lambda found: found.objective)
    assert best.objective < 0.99 * singles[0].objective, "the first start is not the best, or this tests nothing"
    found = k_means(points, 30, generator=generator(), starts=8, **options)
    assert found.objective == best.objective
    assert torch.equal(found.assignment, best.assignment)


@pytest.mark.parametrize("engine", ENGINES)
def test_means_are_fitted_to_the_sample_and_all_points_are_assigned(engine):
    """The sample is drawn first; then its points are clustered as if they were all, and the others assigned to them."""
    points, _ = blobs(k=30)
    options = {"iterations": 5, "engine": engine}
    draws = generator()
    sample = points[torch.randperm(600, generator=draws)[:100]]
    start = sample[torch.randperm(100, generator=draws)[:30]]
    lloyd = {"torch": kmeans._lloyd_torch, "faiss": kmeans._lloyd_faiss}[engine]
    expected = torch.cdist(points, lloyd(sample, start, 5)).argmin(dim=1)
    found = k_means(points, 30, generator=generator(), sample=100, **options)
    assert len(found.assignment) == 600
    pairs = set(zip(found.assignment.tolist(), expected.tolist(), strict=True))
    assert len(pairs) == len(found.means) == len(expected.unique()), "the same partition"
    full = k_means(points, 30, generator=generator(), **options)
    assert not torch.equal(found.assignment, full.assignment)


def test_a_sample_of_all_points_changes_nothing():
    points, _ = blobs()
    full, all_of_them = (k_means(points, 12, generator=generator(), sample=sample) for sample in (0, 600))
    assert torch.equal(full.assignment, all_of_them.assignment)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_points_match_a_loop(dtype, monkeypatch):
    """Wherever in a block they stand; 0 is -0, and numbers in the last bit apart are different."""
    monkeypatch.setattr(kmeans, "_ROWS", 37)
    base = torch.randn(60, 13, generator=generator(), dtype=dtype)
    base[0], base[1] = 0.0, -0.0
    base[2] = base[3] * (1 + torch.finfo(dtype).eps)
    points = base[torch.randint(60, (500,), generator=generator(1))]
    seen, expected = {}, []
    for i, row in enumerate(points.tolist()):
        expected.append(seen.setdefault(tuple(row), i))
    assert len(seen) == 59
    assert originals(points).tolist() == expected
    assert first_of_each(points).tolist() == sorted(seen.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 2.0**40, 0.1])
def test_hashes_of_round_numbers_do_not_collide(dtype, scale):
    """Their last bits are all zero, which a weak hash would suffer from."""
    grid = scale * torch.cartesian_prod(*[torch.arange(4, dtype=dtype)] * 8)
    assert len(first_of_each(grid)) == 4**8


@pytest.mark.parametrize("engine", ENGINES)
def test_identical_points_are_in_one_cluster(engine, monkeypatch):
    """Even if rounding tells them apart: here each point goes to a random centroid."""
    base, _ = blobs(n=50, k=5)
    points = base.repeat(4, 1)[torch.randperm(200, generator=generator(2))]

    def by_chance(points, centroids):
        return torch.zeros(len(points)), torch.randint(len(centroids), (len(points),), generator=generator(3))

    monkeypatch.setattr(kmeans, "_nearest_faiss" if engine == "faiss" else "nearest", by_chance)
    found = k_means(points, 5, generator=generator(), engine=engine)
    identical = (points[:, None] == points).all(dim=2)  # (n, n)
    assert identical.sum() == 200 * 4
    assert (found.assignment[:, None] == found.assignment)[identical].all()
    for c in range(len(found.means)):
        members = points[found.assignment == c]
        assert len(members) > 0
        torch.testing.assert_close(found.means[c], members.mean(dim=0))


def test_a_cluster_that_contains_only_copies_is_dropped(monkeypatch):
    points = torch.tensor([[1.0], [2.0], [2.0], [5.0]])
    monkeypatch.setattr(kmeans, "nearest", lambda points, _: (None, torch.tensor([0, 0, 1, 2])[: len(points)]))
    found = k_means(points, 3, generator=generator(), iterations=0)
    assert found.assignment.tolist() == [0, 0, 0, 1]
    torch.testing.assert_close(found.means, torch.tensor([[5 / 3], [5.0]]))


@pytest.mark.parametrize(
    ("objectives", "best"),
    [([1.0, 1 - 1e-8, 1.0], 0), ([1.0, 0.9, 0.9 - 1e-8, 0.95], 1), ([1e-13, 0.0, 2e-13], 0), ([1.0, 0.0], 1)],
    ids=["alike", "one is better", "all are zero", "one is zero"],
)
def test_the_first_of_equally_good_starts_is_kept(objectives, best, monkeypatch):
    points, _ = blobs(n=60)
    results = [KMeans(points[:1], torch.zeros(60), objective) for objective in objectives]
    left = iter(results)
    monkeypatch.setattr(kmeans, "_finish", lambda *_, **__: next(left))
    assert k_means(points, 4, generator=generator(), iterations=1, starts=len(results)) is results[best]


@pytest.mark.parametrize(("shape", "k"), [((0, 3), 2), ((5, 3), 0), ((5,), 2)])
def test_invalid_input_raises(shape, k):
    with pytest.raises(ValueError, match="k-means needs"):
        k_means(torch.zeros(shape), k, generator=generator())


@linux
def test_faiss_clusters_on_the_gpu_of_the_points(monkeypatch):
    """On that one alone: the others are other ranks'. faiss-gpu is pretended."""
    import faiss

    monkeypatch.setattr(faiss, "index_cpu_to_gpus_list", lambda index, gpus: (index.d, gpus), raising=False)
    second = SimpleNamespace(shape=(50, 4), is_cuda=True, device=torch.device("cuda", 1))
    assert kmeans._flat_index(second) == (4, [1])
    made, flat = [], kmeans._flat_index
    monkeypatch.setattr(kmeans, "_flat_index", lambda points: made.append(flat(points)) or made[-1])
    points, _ = blobs(n=50, k=4)
    k_means(points, 4, generator=generator(), engine="faiss")
    assert [type(index) for index in made] == [faiss.IndexFlatL2] * 2, "for Lloyd's iterations, and to assign"
    assert all(index.ntotal == 4 for index in made)


@linux
@pytest.mark.parametrize(("module", "gpus", "expected"), [("cpu", 0, False), ("gpu", 0, False), ("gpu", 2, True)])
def test_faiss_gpu_is_recognised(monkeypatch, module, gpus, expected):
    import faiss

    if module == "gpu":
        monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    else:
        monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: gpus, raising=False)
    assert kmeans.faiss_has_gpu() is expected
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert look_at_machine("cuda", Ranks()).faiss_gpu is expected
    assert not look_at_machine("cpu", Ranks()).faiss_gpu


@pytest.mark.parametrize("k", [4, 11])
def test_a_seed_lets_faiss_draw_the_start(k):
    """As the published code does: the best of several starts by faiss's own seed, whatever the generator."""
    faiss = pytest.importorskip("faiss")
    points, _ = blobs(n=150, k=12)
    solver = faiss.Kmeans(16, k, niter=3, nredo=4, seed=2, min_points_per_centroid=1)
    solver.train(points.numpy())
    theirs = torch.from_numpy(solver.index.search(points.numpy(), 1)[1][:, 0])
    for other in (0, 1):
        found = k_means(points, k, generator=generator(other), iterations=3, starts=4, engine="faiss", seed=2)
        assert torch.equal(found.assignment[:, None] == found.assignment, theirs[:, None] == theirs)
    other = k_means(points, k, generator=generator(), iterations=3, starts=4, engine="faiss", seed=3)
    assert not torch.equal(other.assignment, found.assignment)


@pytest.mark.parametrize("engine", ["torch", pytest.param("faiss", marks=linux)])
def test_clusters_without_members_stay_where_the_published_code_keeps_them(engine):
    points, _ = blobs(n=60, k=3)
    centroids = torch.cat([points[:2], torch.full((1, 16), 99.0), points[2:3]])
    original = kmeans.originals(points)
    kept = kmeans._finish(points, original, centroids, engine, refit=False)
    assert torch.equal(kept.means, centroids)
    assert torch.equal(kept.assignment, torch.cdist(points, centroids).argmin(dim=1))
    dropped = kmeans._finish(points, original, centroids, engine, refit=True)
    assert len(dropped.means) == 3
    assert torch.equal(kept.assignment[:, None] == kept.assignment, dropped.assignment[:, None] == dropped.assignment)


def test_a_seed_lets_torch_start_from_the_same_points(monkeypatch):
    """Whatever their features are by then, and whichever of them are identical; distinct ones."""
    starts, lloyd = [], kmeans._lloyd_torch
    monkeypatch.setattr(kmeans, "_lloyd_torch", lambda *a: starts.append(a[1]) or lloyd(*a))
    first, _ = blobs(n=40, k=4)
    second = -2 * first
    order = torch.randperm(40, generator=generator(1)).tolist()  # of the first start
    second[order[2]] = second[order[1]]
    for epoch, points in enumerate((first, second)):
        k_means(points, 6, generator=generator(epoch), starts=2, seed=1)
    assert torch.equal(starts[0], first[order[:6]])
    assert torch.equal(starts[2], second[[*order[:2], *order[3:7]]])
    assert torch.equal(starts[3], -2 * starts[1])
    assert not torch.equal(starts[0], starts[1])
    k_means(first, 6, generator=generator(), seed=2)
    assert not torch.equal(starts[4], starts[0])
    sampled = [k_means(first, 6, generator=generator(s), seed=1, sample=20).means for s in (0, 1)]
    assert torch.equal(*sampled)


@pytest.mark.parametrize("engine", ["faiss", "torch"])
def test_published_centroids_are_those_of_the_last_iteration(engine):
    """After a single iteration, long before they are the means of the clusters that images are then assigned to."""
    points = torch.nn.functional.normalize(torch.randn(200, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    found = k_means(points, 10, generator=torch.Generator(), iterations=1, seed=3, engine=engine)
    squared = torch.cdist(points.double(), found.means.double()).square()  # (n, k)
    own = squared.gather(1, found.assignment[:, None])[:, 0]
    assert (own <= squared.min(dim=1).values + 1e-6).all(), "each point is assigned to the nearest"
    assert found.objective == pytest.approx(own.sum().item(), rel=1e-5)
    means = torch.stack([points[found.assignment == j].mean(dim=0) for j in range(len(found.means))])
    assert (means - found.means).abs().max() > 0.01
    if engine == "faiss":
        import faiss

        solver = faiss.Kmeans(8, 10, niter=1, seed=3, min_points_per_centroid=1)
        solver.train(points.numpy())
        torch.testing.assert_close(found.means, torch.from_numpy(solver.centroids))
    fitted = k_means(points, 10, generator=torch.Generator(), iterations=1, engine=engine)
    means = torch.stack([points[fitted.assignment == j].mean(dim=0) for j in range(len(fitted.means))])
    torch.testing.assert_close(fitted.means, means)
