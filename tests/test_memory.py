"""The queue against a Python deque."""

from collections import deque

import pytest
import torch

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


def test_checkpoints_contain_the_queue():
    queue, other = Queue(4, 2), Queue(4, 2)
    queue.push(torch.ones(3, 2), torch.tensor([1, 2, 3]))
    other.load_state_dict(queue.state_dict())
    for q in (queue, other):
        q.push(torch.zeros(2, 2), torch.tensor([4, 5]))
    assert torch.equal(queue.index, other.index)
    assert torch.equal(queue.keys, other.keys)
