"""Supervised training: cross-entropy over the images that have a label."""

import numpy as np
import pytest
import torch

import protonce
from conftest import SMALL
from protonce.errors import UserError
from protonce.methods.base import UNKNOWN
from protonce.methods.supervised import label_term


def test_images_without_a_label_do_not_count():
    """By hand over those with a label, forward and gradient."""
    scores = torch.randn(6, 4, generator=torch.Generator().manual_seed(2), requires_grad=True)
    labels = torch.tensor([2, UNKNOWN, 0, 3, UNKNOWN, 0])
    term = label_term(scores, labels)
    (gradient,) = torch.autograd.grad(term.loss, scores)
    shares = scores.detach().softmax(dim=1)
    known = [0, 2, 3, 5]
    assert term.loss.item() == pytest.approx(-sum(float(shares[i, labels[i]].log()) for i in known) / 4)
    expected = torch.zeros(6, 4)
    for i in known:
        expected[i] = shares[i] / 4
        expected[i, labels[i]] -= 1 / 4
    torch.testing.assert_close(gradient, expected)
    assert float(term.accuracy) == sum(int(scores[i].argmax()) == labels[i] for i in known) / 4
    assert term.chance == pytest.approx(np.log(4))


def test_a_batch_without_any_label_has_no_loss_and_no_gradient():
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(2), requires_grad=True)
    term = label_term(scores, torch.full((3,), UNKNOWN))
    (gradient,) = torch.autograd.grad(term.loss, scores)
    assert term.loss.item() == 0
    assert not gradient.any()
    assert term.accuracy == 0.0


def test_labels_of_half_the_images_are_learnt(photos, tmp_path):
    """Stripes in three directions; every other image has no label, whole batches may have none."""
    listed = sorted(photos.rglob("*.png"))
    rows = "".join(f"{path},{path.parent.name if i % 2 else ''}\n" for i, path in enumerate(listed))
    (tmp_path / "table.csv").write_text("path,label\n" + rows)
    settings = {**SMALL, "batch_size": 15, "epochs": 5, "lr": 0.1, "jitter_p": 0.0, "quiet": True}
    run = protonce.train(tmp_path / "table.csv", tmp_path / "r", method="supervised", **settings)
    assert run.metrics[-1]["label"] < 0.8 * run.metrics[0]["label"]
    assert run.metrics[-1]["label_chance"] == pytest.approx(np.log(3), abs=1e-4)
    with pytest.raises(UserError, match=r"Supervised needs labels, and .* has none"):
        protonce.train(photos / "slope0", tmp_path / "n", method="supervised", **{**SMALL, "clusters": [2]})
