"""Neighbours in faiss's lists against those among all rows."""

import pytest
import torch
import torch.nn.functional as F

from protonce.evaluate.knn import neighbours
from protonce.label import lists
from protonce.label import nearest as module
from protonce.label.lookalikes import Pictures, _candidates
from protonce.label.nearest import nearest

faiss = pytest.importorskip("faiss")


@pytest.fixture
def rows(monkeypatch):
    """Unit vectors around 60 centres, (3000, 16); more than are compared exactly."""
    monkeypatch.setattr(module, "EXACT", 1000)
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(60, 16, generator=draw).repeat(50, 1)
    return F.normalize(centres + 0.5 * torch.randn(3000, 16, generator=draw), dim=1)


def test_the_lists_find_nearly_all_neighbours_and_never_the_row_itself(rows):
    itself = torch.arange(len(rows))
    similarity, found = nearest(rows, rows, 10, left_out=itself)
    exact, expected = neighbours(rows, rows, 10, left_out=itself)
    assert not (found == itself[:, None]).any()
    hits = (found[:, :, None] == expected[:, None, :]).any(dim=2)
    assert hits.double().mean() > 0.95
    assert torch.allclose(similarity, (rows[:, None] * rows[found]).sum(dim=2), atol=1e-5)
    assert (similarity <= exact + 1e-5).all()


def test_other_queries_are_answered_too(rows):
    queries = 3 * rows[:20] + 0.01  # not of unit length
    similarity, found = nearest(rows, queries, 1)
    assert found[:, 0].tolist() == list(range(20))
    assert (similarity > 0.9).all()


def test_short_lists_are_completed_by_comparing_all(rows, monkeypatch):
    """With one list searched, of about 14 rows, 100 neighbours are not found in it."""
    monkeypatch.setattr(lists, "PROBES", 1)
    itself = torch.arange(len(rows))
    similarity, found = nearest(rows, rows, 100, left_out=itself)
    exact, _ = neighbours(rows, rows, 100, left_out=itself)
    assert (found >= 0).all()
    assert torch.allclose(similarity, exact, atol=1e-5)


def test_equal_rows_do_not_hide_each_other(rows):
    """Of thirty equal rows, more than are asked for, each has others of them as neighbours, never itself."""
    rows = torch.cat([rows, rows[:1].expand(30, -1)])
    itself = torch.arange(len(rows))
    similarity, found = nearest(rows, rows, 10, left_out=itself)
    assert not (found == itself[:, None]).any()
    assert torch.allclose(similarity[-30:], torch.ones(30, 10), atol=1e-5)


def test_copies_are_candidates_of_look_alikes(rows):
    """A copy with a little noise is found in the lists."""
    copies = F.normalize(rows[:50] + 0.001, dim=1)
    features = torch.cat([rows, copies])
    pictures = Pictures(None, features, torch.ones(len(features), 64), None)
    all_images = torch.arange(len(features))
    pairs = {*zip(*(ends.tolist() for ends in _candidates(pictures, pictures, all_images, all_images)), strict=True)}
    assert {(i, 3000 + i) for i in range(50)} <= pairs
