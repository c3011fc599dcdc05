"""Which images to label first, against scikit-activeml and by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics.pairwise import rbf_kernel

from protonce.kmeans import k_means
from protonce.label import suggestion
from protonce.label.suggestion import max_herding, suggest, typical, typiclust


def clumps(sizes, seed=0, d=12):
    """Groups of unit vectors of these sizes, well apart."""
    draw = torch.Generator().manual_seed(seed)
    centres = 4 * F.normalize(torch.randn(len(sizes), d, generator=draw), dim=1)
    which = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return F.normalize(centres[which] + 0.5 * torch.randn(len(which), d, generator=draw), dim=1).double(), which


@pytest.mark.parametrize("labelled", [[], [0, 31]])
def test_typiclust_is_that_of_scikit_activeml(monkeypatch, labelled):
    """With the clusters that k-means finds here."""
    pool = pytest.importorskip("skactiveml.pool")
    x, _ = clumps([30, 25, 20, 12, 9, 4])
    kept = []
    monkeypatch.setattr(suggestion, "k_means", lambda *a, **o: kept.append(k_means(*a, **o)) or kept[0])
    ours = typiclust(x, 4, labelled, torch.ones(len(x), dtype=torch.bool), seed=0)

    class Given:
        def __init__(self, n_clusters):
            assert n_clusters == 4 + len(labelled)

        def fit_predict(self, _):
            return kept[0].assignment.numpy()

    y = np.full(len(x), np.nan)
    y[labelled] = 0
    theirs = pool.TypiClust(cluster_algo=Given, k=20, random_state=0).query(x.numpy(), y, batch_size=4)
    assert ours == theirs.tolist()


def test_an_image_is_typical_if_its_neighbours_are_near():
    x, _ = clumps([30])
    distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").sort(dim=1).values[:, 1:21]
    torch.testing.assert_close(typical(x), -distance.mean(dim=1))
    assert typical(x[:1]).tolist() == [0.0]


@pytest.mark.parametrize("labelled", [[], [3, 31]])
def test_max_herding_is_that_of_scikit_activeml(labelled):
    pool = pytest.importorskip("skactiveml.pool")
    x, _ = clumps([30, 25, 20, 12])
    y = np.full(len(x), np.nan)
    y[labelled] = 0
    strategy = pool.MaxHerding(metric_dict={"gamma": 1.0}, random_state=0)
    theirs = strategy.query(x.numpy(), y, batch_size=9).tolist()
    candidate = torch.ones(len(x), dtype=torch.bool)
    candidate[labelled] = False
    assert max_herding(x, 9, labelled, candidate, seed=0) == theirs


def test_max_herding_is_the_plain_greedy_choice(monkeypatch):
    """Also where kernel values do not fit into one block."""
    monkeypatch.setattr(suggestion, "BLOCK", 100)
    x, _ = clumps([17, 11, 5], seed=3)
    kernel, covered, expected = rbf_kernel(x.numpy(), gamma=1.0), np.zeros(len(x)), []
    covered = np.maximum(covered, kernel[:, 2])
    for _ in range(12):
        gains = [-1.0 if i in (2, *expected) else np.maximum(kernel[:, i] - covered, 0).sum() for i in range(len(x))]
        expected.append(int(np.argmax(gains)))
        covered = np.maximum(covered, kernel[:, expected[-1]])
    candidate = torch.arange(len(x)) != 2
    assert max_herding(x, 12, [2], candidate, seed=0) == expected


@pytest.mark.parametrize("strategy", ["typiclust", "maxherding"])
def test_every_group_is_asked_about_once_before_any_is_twice(strategy):
    x, which = clumps([20, 18, 16, 14, 12])
    first = suggest(x.float(), 5, [], strategy, seed=1)
    assert sorted(which[first].tolist()) == [0, 1, 2, 3, 4]
    assert which[first[0]] == 0, "the largest first"
    labelled = [i for i in first if which[i] in (0, 3)]
    others = suggest(x.float(), 3, labelled, strategy, seed=1)
    assert sorted(which[others].tolist()) == [1, 2, 4]


@pytest.mark.parametrize("strategy", ["typiclust", "maxherding"])
def test_identical_images_are_asked_about_once(strategy):
    x, _ = clumps([6, 5])
    x = torch.cat([x, x, x[:3]]).float()
    chosen = suggest(x, 100, [11 + 4], strategy, seed=0)  # a copy of image 4 is labelled
    assert sorted(chosen) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert suggest(x[:1].expand(4, -1), 2, [3], strategy, seed=0) == []
