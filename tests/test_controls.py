"""The control of benchmarks/systems.py: permuted targets keep everything but what belongs together."""

import pytest
import torch

from benchmarks.systems import PERMUTED, permute, permuted, summarise
from protonce.context import Progress
from protonce.methods.base import Batch
from protonce.methods.registry import SYSTEMS

PROGRESS = Progress(epoch=0, step=3, steps=10, epochs=2)


def batch():
    x = torch.arange(6.0)[:, None, None, None].expand(6, 3, 4, 4) + torch.arange(16.0).reshape(4, 4) / 100
    return Batch((x, x + 100), torch.arange(6), PROGRESS, torch.arange(6))


def test_every_system_that_learns_has_a_control():
    assert set(PERMUTED) == set(SYSTEMS) - {"random"}


@pytest.mark.parametrize(
    ("what", "of"), [("views", lambda b: b.views[1][:, 0, 0, 0] - 100), ("images", lambda b: b.index)]
)
def test_targets_of_other_images(what, of):
    found = of(permute(batch(), what, seed=0)).tolist()
    assert found != [0, 1, 2, 3, 4, 5]
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    assert torch.equal(permute(batch(), what, seed=0).views[0], batch().views[0])


def test_rotations_and_tiles_that_nobody_knows():
    (x,) = permute(batch(), "rotations", seed=0).views
    pairs = zip(x, batch().views[0], strict=True)
    turned = [next(k for k in range(4) if torch.equal(a, b.rot90(k, (1, 2)))) for a, b in pairs]
    assert len(set(turned)) > 1
    tiles = torch.arange(9.0).expand(6, 9)[..., None, None, None].expand(6, 9, 3, 2, 2)
    (y,) = permute(Batch((tiles,), torch.arange(6), PROGRESS), "tiles", seed=0).views
    orders = y[:, :, 0, 0, 0]
    assert torch.equal(orders.sort(dim=1).values, torch.arange(9.0).expand(6, 9))
    assert len({tuple(order.tolist()) for order in orders}) == 6


def test_labels_are_permuted_for_the_system():
    control = permuted(SYSTEMS["supervised"].system, "labels")
    assert control.needs_labels
    control.check()
    assert sorted(permute(batch(), "labels", seed=0).labels.tolist()) == [0, 1, 2, 3, 4, 5]


def test_margins_are_paired_by_seed():
    found = {"a true 0": 0.5, "a true 1": 0.6, "a permuted 0": 0.2, "a permuted 1": 0.4}
    (row,) = summarise({**found, "random true 0": 0.3, "random true 1": 0.3}, ["a"], [0, 1])
    assert row["over_permuted"] == pytest.approx(0.25)
    assert row["smallest_over_permuted"] == pytest.approx(0.2)
    assert row["over_random"] == pytest.approx(0.25)
