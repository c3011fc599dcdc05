"""Nearest neighbours: which they are, and how they vote."""

import numpy as np
import pytest
import torch

from protonce.evaluate import knn
from protonce.evaluate.protocols import evaluate


def test_knn_neighbours_are_chosen_without_the_test_images(trained, others):
    """By leave-one-out over the training images: a loop over them, in both spaces."""
    result = evaluate(trained, "knn", test=str(others), quiet=True)
    source = trained.source()
    backbone, query, bank = trained.features(source, "backbone", "query", "momentum")
    codes = np.array([int(label[-1]) for label in source.labels])
    for metric, known, asking in (("accuracy", backbone, backbone), ("momentum_accuracy", bank, query)):
        known, asking = (torch.nn.functional.normalize(x, dim=1).numpy() for x in (known, asking))
        right = {}
        for k in (1, 5, 10, 20):
            hits = 0
            for i in range(48):
                similarity = asking[i] @ known.T
                nearest = [j for j in np.argsort(-similarity) if j != i][:k]
                votes = np.zeros(3)
                for j in nearest:
                    votes[codes[j]] += np.exp(similarity[j] / 0.1)
                hits += votes.argmax() == codes[i]
            right[k] = hits / 48
        found = knn.choose_k(torch.from_numpy(known), torch.from_numpy(asking), source.labels, 0.1, np.arange(48))
        assert found == pytest.approx(right)
        assert result["settings"][f"neighbours of {metric}"] == knn.best_k(right)


def test_neighbours_in_blocks_are_all_neighbours(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    bank, queries = torch.randn(50, 8, generator=generator), torch.randn(17, 8, generator=generator)
    whole = knn.neighbours(bank, queries, 5)
    monkeypatch.setattr(knn, "_BLOCK", 120)
    parts = knn.neighbours(bank, queries, 5)
    torch.testing.assert_close(parts[0], whole[0])
    assert torch.equal(parts[1], whole[1])


@pytest.mark.parametrize("leave_out", [False, True])
def test_the_first_of_equally_similar_images_are_the_neighbours(leave_out, monkeypatch):
    """Copies that differ in length alone: their unit vectors differ by rounding. By a loop, for every k."""
    monkeypatch.setattr(knn, "_BLOCK", 200)
    rng = np.random.default_rng(0)
    base = rng.integers(-2, 3, (6, 33))
    bank = base[rng.integers(0, 6, 40)]
    queries = bank if leave_out else np.concatenate([base, rng.integers(-2, 3, (10, 33))])
    cosine = queries @ bank.T / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(bank, axis=1)
    scaled = torch.from_numpy(bank * rng.uniform(0.1, 10, (40, 1))).float()
    left_out = torch.arange(40) if leave_out else None
    for k in range(1, 40):
        similarity, found = knn.neighbours(scaled, torch.from_numpy(queries).float(), k, left_out)
        for i, positions in enumerate(found.tolist()):
            others = [j for j in range(40) if not leave_out or j != i]
            assert positions == sorted(others, key=lambda j: (-round(cosine[i, j], 9), j))[:k]
            np.testing.assert_allclose(similarity[i], cosine[i, positions], atol=1e-6)


def test_all_neighbours_of_identical_features():
    bank = torch.randn(1, 67, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 3, 50)[:, None]
    assert knn.neighbours(bank, bank, 7)[1].tolist() == [list(range(7))] * 50
    assert knn.neighbours(bank, bank, 50)[1].tolist() == [list(range(50))] * 50


@pytest.mark.parametrize("tau", [0.001, 0.1, 2.0])
def test_the_first_of_labels_with_equal_votes_wins(tau):
    """Three labels with the same similarities, up to noise; then one with clearly more."""
    rng = np.random.default_rng(0)
    similarity = np.repeat(rng.uniform(0.5, 0.9, (200, 5)), 3, axis=1) + rng.uniform(-2e-7, 2e-7, (200, 15))
    labels = np.stack([np.concatenate([rng.permutation([1, 2, 4]) for _ in range(5)]) for _ in range(200)])
    votes = torch.from_numpy(similarity).float(), torch.from_numpy(labels)
    assert knn.vote(*votes, 6, tau).tolist() == [1] * 200
    similarity[labels == 4] += 1e-4
    assert knn.vote(torch.from_numpy(similarity).float(), votes[1], 6, tau).tolist() == [4] * 200


def test_an_image_left_out_is_not_its_own_neighbour():
    """Labels by chance: whoever may ask itself is always right, and whoever may not is right as often as a guess."""
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(300, 8, generator=draw)
    labels = [f"c{c}" for c in torch.randint(0, 3, (300,), generator=draw).tolist()]
    chosen = np.arange(0, 300, 2)
    found = knn.choose_k(points, points, labels, 0.1, chosen)
    unit = torch.nn.functional.normalize(points, dim=1)
    similarity = (unit @ unit.T).fill_diagonal_(-2)
    nearest = similarity.argmax(dim=1)
    assert found[1] == pytest.approx(np.mean([labels[nearest[i]] == labels[i] for i in chosen]))
    assert max(found.values()) < 0.6
    _, positions = knn.neighbours(points, points, 5, torch.arange(300))
    assert not (positions == torch.arange(300)[:, None]).any()
