"""The queue against a Python deque."""

from collections import deque

import pytest
import torch
import torch.nn.functional as F

from protonce.memory import EMPTY, Queue


@pytest.mark.parametrize(("length", "batch"), [(10, 4), (7, 7), (5, 8), (12, 5)])
def test_queue_is_a_deque(length, batch):
    """Whether or not one divides the other, and where a batch is longer than the queue."""
    queue, model = Queue(length, 3), deque(maxlen=length)
    for step in range(6):
        keys = torch.randn(batch, 3, generator=torch.Generator().manual_seed(step))
        index = torch.arange(batch) + 100 * step
        queue.push(keys, index)
        model.extend(zip(index.tolist(), keys.tolist(), strict=True))
        held = {int(i): k.tolist() for i, k in zip(queue.index, queue.keys, strict=True) if i != EMPTY}
        assert held == dict(model)


def test_mask_hides_own_keys_and_empty_slots():
    queue = Queue(5, 2)
    queue.push(torch.ones(3, 2), torch.tensor([7, 8, 7]))
    mask = queue.mask(torch.tensor([7, 9]))
    assert mask.tolist() == [[True, False, True, True, True], [False, False, False, True, True]]


def test_a_random_queue_is_of_unit_vectors_that_are_negatives_of_every_query():
    queue = Queue(6, 3, torch.Generator().manual_seed(4))
    expected = F.normalize(torch.randn(6, 3, generator=torch.Generator().manual_seed(4)), dim=1)
    assert torch.equal(queue.keys, expected)
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(6))
    queue.push(torch.zeros(2, 3), torch.tensor([7, 0]))
    assert queue.mask(torch.tensor([7, 1])).tolist() == [[True] + [False] * 5, [False] * 6]
    assert torch.equal(queue.keys[2:], expected[2:])
    assert not queue.empty(torch.tensor([7, 1])).any()
    assert Queue(3, 2).empty(torch.tensor([7, 1])).tolist() == [[True] * 3] * 2


def test_checkpoints_contain_the_queue():
    queue, other = Queue(4, 2), Queue(4, 2)
    queue.push(torch.ones(3, 2), torch.tensor([1, 2, 3]))
    other.load_state_dict(queue.state_dict())
    for q in (queue, other):
        q.push(torch.zeros(2, 2), torch.tensor([4, 5]))
    assert torch.equal(queue.index, other.index)
    assert torch.equal(queue.keys, other.keys)
