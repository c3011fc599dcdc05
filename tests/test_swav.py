"""SwAV: Sinkhorn's codes, the swapped prediction, frozen prototypes, the queue, and multi-crop."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from conftest import make_system
from protonce.auto import DataSize
from protonce.errors import UserError
from protonce.methods.swav import SwAV, sinkhorn, swapped_loss
from steps import IMAGENET, auto_of_recipe, batch_of, fit, options_at


def scores_of(n=12, k=5, seed=0):
    """Products of unit vectors with unit prototypes."""
    draw = torch.Generator().manual_seed(seed)
    z, c = (F.normalize(torch.randn(m, 8, dtype=torch.double, generator=draw), dim=1) for m in (n, k))
    return (z @ c.T).requires_grad_()


def naive_sinkhorn(scores, epsilon, iterations):
    """Rows of (K, B) to 1/K, then columns to 1/B, one by one."""
    samples, k = scores.shape
    q = [[math.exp(float(scores[b, j]) / epsilon) for b in range(samples)] for j in range(k)]
    for _ in range(iterations):
        for j in range(k):
            total = sum(q[j])
            q[j] = [value / total / k for value in q[j]]
        for b in range(samples):
            total = sum(q[j][b] for j in range(k))
            for j in range(k):
                q[j][b] /= total * samples
    return torch.tensor([[q[j][b] * samples for j in range(k)] for b in range(samples)], dtype=torch.double)


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_sinkhorn_is_the_naive_one_and_a_peers(iterations, epsilon):
    pytest.importorskip("lightly")
    from lightly.loss import swav_loss

    scores = scores_of().detach()
    ours = sinkhorn(scores, epsilon, iterations)
    torch.testing.assert_close(ours, naive_sinkhorn(scores, epsilon, iterations))
    torch.testing.assert_close(ours, swav_loss.sinkhorn(scores, iterations, epsilon))


def test_codes_share_the_samples_out_evenly():
    q = sinkhorn(scores_of().detach(), 0.05, 1000)
    torch.testing.assert_close(q.sum(dim=1), torch.ones(12, dtype=torch.double))
    torch.testing.assert_close(q.sum(dim=0), torch.full((5,), 12 / 5, dtype=torch.double), atol=1e-3, rtol=0)
    rows = sinkhorn(torch.full((6, 3), 0.7), 0.05, 3)  # samples that are all alike
    torch.testing.assert_close(rows, torch.full((6, 3), 1 / 3))


def test_a_small_epsilon_does_not_overflow():
    q = sinkhorn(scores_of(6, 3).float().detach(), 0.001, 3)
    assert torch.isfinite(q).all()
    torch.testing.assert_close(q.sum(dim=1), torch.ones(6))


@pytest.mark.parametrize("small", [0, 6])
@pytest.mark.parametrize("queued", [0, 7])
def test_the_loss_is_a_peers(small, queued):
    pytest.importorskip("lightly")
    from lightly.loss import SwaVLoss

    views = [scores_of(seed=seed) for seed in range(2 + small)]
    queues = [scores_of(queued, seed=9 + i).detach() for i in range(2)] if queued else None
    codes = []
    for i in range(2):
        rows = torch.cat([views[i].detach(), queues[i]]) if queued else views[i].detach()
        codes.append(sinkhorn(rows, 0.05, 3)[:12])
    ours = swapped_loss(views, codes, 0.1)
    theirs = SwaVLoss()(views[:2], views[2:], queues)
    torch.testing.assert_close(ours, theirs[0])
    torch.testing.assert_close(torch.autograd.grad(ours, views), torch.autograd.grad(theirs, views))


def test_the_loss_of_two_views_is_eq_2_by_hand():
    views = [scores_of(3, 4, seed=seed) for seed in range(2)]
    codes = [sinkhorn(view.detach(), 0.05, 3) for view in views]
    total = 0.0
    for s, t in ((0, 1), (1, 0)):
        for i in range(3):
            e = torch.exp(views[t][i] / 0.1)
            total = total - sum(codes[s][i, k] * torch.log(e[k] / e.sum()) for k in range(4))
    expected = total / 6
    ours = swapped_loss(views, codes, 0.1)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(torch.autograd.grad(ours, views), torch.autograd.grad(expected, views))


def test_an_m_step_is_the_paper_with_codes_of_two_views_of_eight():
    system = make_system("swav", prototypes=6, code_queue=0, crops="2+6", bn_splits=1, tau=0.1).train()
    batch, theta = batch_of([16] * 2 + [7] * 6), copy.deepcopy(system)
    loss, terms = system.m_step(batch, None)
    loss.backward()
    c = F.normalize(theta.C.weight, dim=1)
    torch.testing.assert_close(theta.C.weight, c)
    scores = [F.normalize(theta.query.head(theta.query.backbone(x)), dim=1) @ theta.C.weight.T for x in batch.views]
    expected = 0.0
    for s in range(2):
        q = naive_sinkhorn(scores[s].detach(), 0.05, 3).float()
        for t in range(8):
            if t != s:
                expected = expected - (q * F.log_softmax(scores[t] / 0.1, dim=1)).sum() / 16 / 14
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(system.parameters(), theta.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=2e-3)
    assert terms["swapped"].chance == pytest.approx(math.log(6))


def test_embeddings_that_are_all_alike_cannot_beat_the_chance_level():
    for scores in (torch.full((8, 5), 0.3), torch.randn(1, 5).expand(8, 5)):
        codes = [sinkhorn(scores, 0.05, 3)] * 2
        assert float(swapped_loss([scores] * 2, codes, 0.1)) >= math.log(5) - 1e-5


def test_prototypes_stay_while_frozen_and_are_unit_vectors_ever_after():
    system = make_system("swav", prototypes=6, frozen_steps=2)
    seen = [system.C.weight.detach().clone()]
    for step in range(4):
        fit(system, [batch_of(step=step, epochs=2)])
        seen.append(system.C.weight.detach().clone())
        torch.testing.assert_close(seen[-1].norm(dim=1), torch.ones(6))
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[3], seen[4])


def test_the_queue_holds_the_features_of_earlier_batches_and_is_used_once_it_is_full():
    system = make_system("swav", prototypes=6, code_queue=24, code_queue_from=1, bn_splits=1).train()
    held = ([], [])
    for k in range(6):  # three steps an epoch; the queue is filled from step 3 on, full after step 4, used in step 5
        batch, theta = batch_of(epoch=k // 3, step=k % 3, seed=k), copy.deepcopy(system)
        loss, _ = system.m_step(batch, None)
        with torch.no_grad():
            z = [theta.query(x) for x in batch.views]
        codes = []
        for i in range(2):
            queue = torch.cat(held[i])[-24:] if held[i] else torch.zeros(0, 16)
            rows = torch.cat([z[i], queue]) if len(queue) == 24 else z[i]
            codes.append(sinkhorn(rows @ system.C.weight.detach().T, 0.05, 3)[:16])
            if k >= 3:
                held[i].append(z[i])
        expected = swapped_loss([system.C(v) for v in z], codes, system.settings.tau)
        torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
        for i in range(2):
            assert int((system.queues[i].index >= 0).sum()) == (0, 0, 0, 16, 24, 24)[k]
    for i in range(2):
        newest = system.queues[i].keys.roll(-int(system.queues[i].position), dims=0)  # from the oldest on
        torch.testing.assert_close(newest, torch.cat(held[i])[-24:], atol=1e-5, rtol=1e-4)
    assert {name for name in system.state_dict() if "queues.0" in name} == {
        f"queues.0.{buffer}" for buffer in ("keys", "index", "position")
    }


def test_training_makes_the_loss_fall():
    system = make_system("swav", prototypes=6, frozen_steps=2, head="mlp-bn", crops="2+6", tau=0.1)
    losses = fit(system, [batch_of([16] * 2 + [7] * 6, step=step, steps=12) for step in range(10)], lr=0.03)
    assert losses[-1] < losses[0] - 0.5


def test_views_by_size():
    settings, options = options_at(IMAGENET, "swav", image_size=224, crop_scale=[0.14, 1.0])
    views = SwAV.views(settings, options)
    assert [view.size for view in views] == [None] * 2 + [96] * 6
    assert {view.crop_scale for view in views[2:]} == {(0.05, 0.14)}
    assert len({view.name for view in views}) == 8
    settings, options = options_at(DataSize(500, 28), "swav")
    assert len(SwAV.views(settings, options)) == 2, "small images have no smaller views"
    settings, options = options_at(DataSize(500, 224), "swav", backbone="vit_tiny_patch16_224")
    with pytest.raises(
        UserError, match="backbone vit_tiny_patch16_224 accepts images of one size only; set crops to 2"
    ):
        SwAV.views(settings, options)


def test_auto_is_the_papers_at_its_size_and_sensible_below():
    own, automatic = auto_of_recipe("swav")
    assert own == automatic
    small = {"batch_size": 256, "epochs": 200, "image_size": 224}
    _, options = options_at(IMAGENET, "swav", **small)
    assert (options.code_queue, options.code_queue_from, options.frozen_steps) == (3840, 15, 5005), "its small batches"
    for n in (8, 48, 500, 3000, 50_000):
        settings, options = options_at(DataSize(n, 32), "swav", epochs=40)
        assert 2 <= options.prototypes <= max(n / 8, 2)
        assert 4 * (options.code_queue + settings.batch_size) >= options.prototypes, "enough for an even share"
        assert options.code_queue_from <= 3
        trials = options.trials(settings, n)
        assert trials[0] == {}
        assert len(trials) == 6
    assert options_at(DataSize(500, 32), "swav")[1].prototypes == 59
