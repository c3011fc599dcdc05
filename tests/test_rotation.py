"""Rotation prediction: all four rotations of every image, and which class each is."""

import math

import pytest
import torch

from conftest import make_system
from protonce.context import Progress
from protonce.methods.base import Batch
from protonce.methods.rotation import rotations


def test_four_rotations_of_each_image_by_hand():
    x = torch.tensor([[0, 1], [2, 3]])
    images = torch.stack([x, 10 + x])[:, None]  # (2, 1, 2, 2)
    expected = [[[0, 1], [2, 3]], [[1, 3], [0, 2]], [[3, 2], [1, 0]], [[2, 0], [3, 1]]]  # counterclockwise
    found = rotations(images)
    assert found[:4, 0].tolist() == expected
    assert (found[4:, 0] - 10).tolist() == expected


def test_the_loss_is_the_mean_over_images_and_rotations():
    """Eq. 3 as two loops, image by image in eval mode; forward and gradient."""
    system = make_system("rotation").eval()
    (x,) = views = (torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1)),)
    loss, terms = system.m_step(Batch(views, torch.arange(5), Progress(0, 0, 3, 3)), None)
    weight = system.query.backbone.conv1.weight
    total, right = 0, 0
    for image in x:
        for y in range(4):
            turned = image
            for _ in range(y):
                turned = turned.transpose(1, 2).flip(1)  # 90 degrees counterclockwise
            scores = system.classifier(system.query.features(turned[None]))[0]
            total = total - scores.log_softmax(dim=0)[y]
            right += int(scores.argmax()) == y
    torch.testing.assert_close(loss, total / 20)
    assert float(terms["rotation"].accuracy) == right / 20
    assert terms["rotation"].chance == pytest.approx(math.log(4))
    torch.testing.assert_close(
        *(torch.autograd.grad(value, weight)[0] for value in (loss, total / 20)), atol=1e-5, rtol=1e-3
    )
