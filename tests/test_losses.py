"""The losses against a naive loop over the paper's equations, forward and backward."""

import math

import pytest
import torch
import torch.nn.functional as F

from protonce import blockwise, losses
from protonce.blockwise import blockwise_nce
from protonce.losses import (
    accuracy,
    info_nce,
    nce,
    own_or_last,
    proto_nce,
    prototype_logits,
    sample_candidates,
    sample_with_batch,
)
from protonce.memory import Queue
from protonce.prototypes import Prototypes, concentration

D = 6


def unit(*shape, seed):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1)


def prototype_set(k, n, seed):
    generator = torch.Generator().manual_seed(seed)
    assignment = torch.randint(k, (n,), generator=generator)
    phi = torch.rand(k, generator=generator, dtype=torch.float64) * 0.3 + 0.05
    centroids = unit(k, D, seed=seed)
    return Prototypes(centroids, centroids, assignment, phi)


def naive_proto_nce(v, v_, queue, queue_index, prototypes, index, tau, drawn, weight=1.0, instance=True):
    """Eq. 11, image by image, term by term, with plain Python sums."""
    total = 0.0
    for i in range(len(v)):
        own = int(index[i])
        if instance:
            top = torch.exp(v[i] @ v_[i] / tau)
            bottom = top
            for j in range(len(queue)):
                if int(queue_index[j]) not in (own, -1):
                    bottom = bottom + torch.exp(v[i] @ queue[j] / tau)
            total = total - torch.log(top / bottom)
        inner = 0.0
        for m, c in enumerate(prototypes):
            s = int(c.assignment[own])
            top = torch.exp(v[i] @ c.centroids[s] / c.concentration[s])
            bottom = top
            others = list(range(len(c.centroids))) if drawn[m] is None else drawn[m].tolist()
            others.remove(s if s in others else others[-1])
            for j in others:
                bottom = bottom + torch.exp(v[i] @ c.centroids[j] / c.concentration[j])
            inner = inner + torch.log(top / bottom)
        if prototypes:
            total = total - weight * inner / len(prototypes)
    return total / len(v)


@pytest.mark.parametrize("granularities", [1, 3])
@pytest.mark.parametrize(("k", "r"), [(5, 9), (9, 9), (10, 9), (30, 9)], ids=["k<r", "k=r", "k=r+1", "k>r"])
def test_proto_nce_is_the_loop_over_equation_11(k, r, granularities):
    n, batch, tau = 40, 12, 0.2
    index = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    prototypes = [prototype_set(k + m, n, seed=m) for m in range(granularities)]
    for c in prototypes:
        c.assignment[index[1]] = c.assignment[index[0]]  # two images of the batch share a prototype
    queue, v_ = unit(7, D, seed=50), unit(batch, D, seed=51)
    queue_index = torch.tensor([20, 3, 21, -1, 22, 0, 3])  # keys of images 3 and 0 themselves, and an empty slot
    memory = Queue(7, D).double()
    memory.keys.copy_(queue)
    memory.index.copy_(queue_index)
    generator = torch.Generator().manual_seed(1)
    drawn = [sample_candidates(len(c.centroids), r, generator) for c in prototypes]
    assert all((d is None) == (len(c.centroids) <= r + 1) for d, c in zip(drawn, prototypes, strict=True))

    fast_v = unit(batch, D, seed=52).requires_grad_()
    slow_v = fast_v.detach().clone().requires_grad_()
    fast = proto_nce(
        fast_v,
        v_,
        memory.keys,
        prototypes,
        index,
        tau=tau,
        mask=memory.mask(index),
        candidates=drawn,
        weight=1.7,
    ).loss
    slow = naive_proto_nce(slow_v, v_, queue, queue_index, prototypes, index, tau, drawn, weight=1.7)
    torch.testing.assert_close(fast, slow)
    (fast_gradient,) = torch.autograd.grad(fast, fast_v)
    (slow_gradient,) = torch.autograd.grad(slow, slow_v)
    torch.testing.assert_close(fast_gradient, slow_gradient)


@pytest.mark.parametrize("block", [7, 64, 10**6], ids=["many blocks", "some", "one"])
def test_blockwise_loss_equals_the_plain_loss(monkeypatch, block):
    """Loss, accuracy and gradient; own prototypes among the candidates, and logits of very different size."""
    monkeypatch.setattr(blockwise, "BLOCK", block)
    c = prototype_set(30, 40, seed=3)
    c.concentration[4] = 1e-3  # logits up to 1000
    own, drawn = c.assignment[:12], torch.randperm(30, generator=torch.Generator().manual_seed(1))[:19]
    assert set(own.tolist()) & set(drawn.tolist())
    assert set(own.tolist()) - set(drawn.tolist())
    v = unit(12, D, seed=5).requires_grad_()
    logits = prototype_logits(v, c.centroids, c.concentration, own, drawn)
    plain, blocks = nce(logits), blockwise_nce(v, c.centroids, c.concentration, own, drawn, own_or_last(drawn, own, 30))
    torch.testing.assert_close(blocks[0], plain)
    assert blocks[1] == accuracy(logits)
    (expected,), (found,) = torch.autograd.grad(plain, v), torch.autograd.grad(blocks[0], v)
    torch.testing.assert_close(found, expected)


def test_gradcheck_of_the_blockwise_loss(monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK", 11)
    c = prototype_set(12, 5, seed=3)

    def loss(v):
        dropped = own_or_last(torch.arange(2, 10), c.assignment, 12)
        return blockwise_nce(v, c.centroids, c.concentration, c.assignment, torch.arange(2, 10), dropped)[0]

    assert torch.autograd.gradcheck(loss, unit(5, D, seed=9).requires_grad_())


def test_many_negatives_use_the_blockwise_loss(monkeypatch):
    c = [prototype_set(60, 40, seed=m) for m in range(2)]
    drawn = [sample_candidates(60, 40, torch.Generator().manual_seed(m)) for m in range(2)]
    arguments = unit(8, D, seed=1), unit(8, D, seed=2), unit(20, D, seed=3), c, torch.arange(8)
    plain = proto_nce(*arguments, tau=0.1, candidates=drawn)
    monkeypatch.setattr(losses, "MANY", 40)
    monkeypatch.setattr(losses, "prototype_logits", None)  # not asked
    torch.testing.assert_close(proto_nce(*arguments, tau=0.1, candidates=drawn), plain)


def test_terms_of_appendix_a():
    """Instance alone in warm-up even where only prototypes are wanted; prototypes alone afterwards; their sum."""
    v, v_, queue, index = unit(8, D, seed=1), unit(8, D, seed=2), unit(20, D, seed=3), torch.arange(8)
    c = [prototype_set(5, 8, seed=4)]
    both = proto_nce(v, v_, queue, c, index, tau=0.1)
    warm = proto_nce(v, v_, queue, [], index, tau=0.1, instance_term=False)
    alone = proto_nce(v, v_, queue, c, index, tau=0.1, instance_term=False)
    torch.testing.assert_close(warm.loss, info_nce(v, v_, queue, 0.1))
    assert warm.prototype is None
    assert alone.instance is None
    torch.testing.assert_close(both.loss, warm.loss + alone.loss)


def test_proto_nce_with_one_prototype_per_image_is_info_nce():
    """Section 3.2: InfoNCE is the case c = v', φ = τ."""
    n, tau = 9, 0.3
    v, keys = unit(n, D, seed=1), unit(n, D, seed=2)
    singles = Prototypes(keys, keys, torch.arange(n), torch.full((n,), tau, dtype=torch.float64))
    index = torch.arange(n)
    ours = proto_nce(v, keys, keys[:0], [singles], index, tau=tau, instance_term=False).loss
    theirs = info_nce(v, keys, keys, tau, mask=torch.eye(n, dtype=torch.bool))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(ours, F.cross_entropy(v @ keys.T / tau, index))


def test_info_nce_by_hand():
    """Query equals its key, one opposite negative, τ = 1: -log(e / (e + 1/e))."""
    v = torch.tensor([[1.0, 0.0]])
    loss = info_nce(v, v, -v, tau=1.0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-2)), abs=1e-6)


def test_gradcheck_of_the_losses():
    c = prototype_set(7, 5, seed=3)
    keys, queue, index = unit(5, D, seed=1), unit(6, D, seed=2), torch.arange(5)

    def loss(v):
        return proto_nce(v, keys, queue, [c], index, tau=0.2).loss

    assert torch.autograd.gradcheck(loss, unit(5, D, seed=9).requires_grad_())


def test_accuracies_count_the_positive_that_scores_highest():
    v = torch.eye(4, dtype=torch.float64)
    keys = torch.stack([v[0], v[1], v[3], v[2]])  # two of four are right
    c = Prototypes(v, v, torch.tensor([0, 1, 2, 0]), torch.full((4,), 0.1, dtype=torch.float64))  # three of four
    result = proto_nce(v, keys, v, [c], torch.arange(4), tau=0.1, mask=torch.eye(4, dtype=torch.bool))
    assert result.prototype_accuracy.item() == pytest.approx(0.75)
    assert result.instance_accuracy.item() == pytest.approx(0.5)


def test_candidates_are_drawn_without_replacement():
    drawn = sample_candidates(100, 60, torch.Generator().manual_seed(0))
    assert len(drawn) == len(set(drawn.tolist())) == 61
    again = sample_candidates(100, 60, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)
    assert sample_candidates(61, 60, torch.Generator()) is None


def test_a_query_has_r_negatives_each_as_likely_as_the_others():
    """Whether or not its own prototype is drawn, which is never among them."""
    generator, own, counts = torch.Generator().manual_seed(1), torch.tensor([0, 7, 19]), torch.zeros(3, 20)
    for _ in range(3000):
        drawn = sample_candidates(20, 5, generator)
        for i, place in enumerate(own_or_last(drawn, own, 20).tolist()):
            kept = [int(c) for j, c in enumerate(drawn) if j != place]
            assert len(kept) == len({*kept} - {int(own[i])}) == 5
            counts[i, kept] += 1
    expected = torch.full((3, 20), 5 / 19)
    expected[torch.arange(3), own] = 0
    assert (counts / 3000 - expected).abs().max() < 0.04


@pytest.mark.parametrize("r", [4, 40], ids=["some", "all the others"])
@pytest.mark.parametrize("block", [7, None], ids=["blockwise", "plain"])
def test_negative_prototypes_as_published(monkeypatch, r, block):
    """A column for each image of the batch and r of the prototypes that none has; the target is the image's column."""
    if block:
        monkeypatch.setattr(blockwise, "BLOCK", block)
        monkeypatch.setattr(losses, "MANY", 1)
    c, index = prototype_set(20, 40, seed=3), torch.arange(8)
    c.assignment[:8] = torch.tensor([2, 2, 5, 19, 2, 7, 0, 11])  # three images share a prototype
    own = c.assignment[index]
    drawn = sample_with_batch(own, 20, r, torch.Generator().manual_seed(1))
    assert drawn[:8].tolist() == own.tolist()
    others = drawn[8:].tolist()
    assert len(others) == len({*others} - {*own.tolist()}) == min(r, 20 - 6)
    assert torch.equal(drawn, sample_with_batch(own, 20, r, torch.Generator().manual_seed(1)))

    v = unit(8, D, seed=5).requires_grad_()
    keys = unit(8, D, seed=6)
    found = proto_nce(v, keys, keys, [c], index, tau=0.1, candidates=[drawn], instance_term=False).loss
    logits = torch.stack(
        [torch.stack([v[i] @ c.centroids[j] / c.concentration[j] for j in drawn.tolist()]) for i in range(8)]
    )
    expected = F.cross_entropy(logits, torch.arange(8))
    torch.testing.assert_close(found, expected)
    (gradient,), (theirs,) = torch.autograd.grad(found, v), torch.autograd.grad(expected, v)
    torch.testing.assert_close(gradient, theirs)


def test_negative_prototypes_as_published_are_each_as_likely_as_the_others():
    own, counts, generator = torch.tensor([3, 3, 9]), torch.zeros(12), torch.Generator().manual_seed(0)
    for _ in range(3000):
        counts[sample_with_batch(own, 12, 4, generator)[3:]] += 1
    expected = torch.full((12,), 4 / 10)
    expected[own] = 0
    assert (counts / 3000 - expected).abs().max() < 0.04


def test_duplicates_give_a_finite_loss():
    """A fifth of the clusters are exact duplicates, so that their spread is zero."""
    points = unit(200, D, seed=1).float()
    points[:40] = points[:8].repeat_interleave(5, dim=0)
    assignment = torch.cat([torch.arange(8).repeat_interleave(5), 8 + torch.arange(160) % 32])
    means = torch.stack([points[assignment == k].mean(dim=0) for k in range(40)])
    spread = (points - means[assignment]).norm(dim=1)
    assert (spread[:40] < 1e-6).all()
    phi = concentration(points, means, assignment, 0.1, 10.0)
    prototypes = [Prototypes(F.normalize(means, dim=1), means, assignment, phi)]
    v = points.clone().requires_grad_()
    loss = proto_nce(v, points, points, prototypes, torch.arange(200), tau=0.1).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(v.grad).all()


@pytest.mark.parametrize("noise", [-3e-7, 0, 3e-7], ids=["below", "equal", "above"])
def test_equal_logits_have_accuracy_zero(monkeypatch, noise):
    """Whatever the rounding: here the positive is off by a few units in the last place of float32."""
    v = unit(1, 67, seed=1).float().expand(8, -1)
    own = v * (1 + noise)
    centroids, drawn = torch.cat([own, v]), torch.arange(8, 16)
    c = Prototypes(centroids, centroids, torch.arange(8), torch.full((16,), 0.07))
    result = proto_nce(v, own, v, [c], torch.arange(8), tau=0.07, candidates=[drawn])
    assert result.instance_accuracy == 0
    assert result.prototype_accuracy == 0
    monkeypatch.setattr(losses, "MANY", 1)
    assert proto_nce(v, own, v, [c], torch.arange(8), tau=0.07, candidates=[drawn]).prototype_accuracy == 0


def test_rounding_does_not_affect_the_accuracy_of_orthogonal_vectors():
    """Logits that should be 0 are what rounding leaves of sums that cancel."""
    logits = torch.tensor([[3e-8, -2e-8, 1e-8], [2e-3, 1e-3, 0.0], [-4.0, -torch.inf, -torch.inf]])
    assert accuracy(logits[:1]) == 0
    assert accuracy(logits[1:]) == 1  # the last has no negative that counts
