"""The systems: their M-steps are their papers', written out here with plain operations."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import make_system
from protonce import randomness
from protonce.config import Settings
from protonce.context import Context, Progress
from protonce.encoder import build
from protonce.errors import UserError
from protonce.fields import setting
from protonce.losses import proto_nce
from protonce.methods import registry
from protonce.methods.base import Batch, System
from protonce.methods.moco import MoCo
from protonce.methods.options import Options
from protonce.methods.options.moco import MoCoOptions
from protonce.methods.options.pcl import PCLOptions
from protonce.momentum import encode_keys
from protonce.prototypes import concentration


def batch_of(n=16, epoch=0, step=0):
    generator = torch.Generator().manual_seed(step)
    views = tuple(torch.randn(n, 3, 16, 16, generator=generator) for _ in range(2))
    return Batch(views, torch.arange(n), Progress(epoch, step, 3, 4))


def unit_features(n=48):
    return F.normalize(torch.randn(n, 16, generator=torch.Generator().manual_seed(5)), dim=1)


def twins(system):
    """θ and θ', the same draw as the system's, and how they are encoded."""
    theta, theta_ = build(system.settings).train(), build(system.settings).train()
    theta.splits = theta_.splits = system.settings.bn_splits
    return theta, theta_


def test_one_epoch_is_algorithm_1():
    """The loop of the paper, written out here with plain operations, ends at the same weights."""
    options = {"warmup_epochs": 0, "twin_momentum": 0.9, "queue": 20, "negatives": 3, "prototype_weight": 0.5}
    system = make_system(**options, alpha=2.0).train()
    optimizer = torch.optim.SGD(system.query.parameters(), lr=0.1)
    theta, theta_ = twins(system)
    features, settings = unit_features(), system.settings
    prototypes = system.e_step(0, lambda: features)
    again = make_system(**options, alpha=2.0).e_step(0, lambda: features)
    assert all(torch.equal(a.centroids, b.centroids) for a, b in zip(prototypes, again, strict=True))
    for c in prototypes:
        phi = concentration(features, c.means, c.assignment, settings.tau, alpha=2.0)
        torch.testing.assert_close(c.concentration, phi)

    keys, owners = torch.zeros(20, 16), torch.full((20,), -1)
    place = 0
    for step in range(3):
        batch = batch_of(step=step)
        loss, terms = system.m_step(batch, prototypes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        system.after_step(batch.progress)

        x, x_ = batch.views
        v = theta(x)
        shuffle = randomness.generator(settings.seed, "shuffle", 0, step)
        v_ = encode_keys(theta_, x_, system.context, shuffle)
        for key, owner in zip(v_, batch.index, strict=True):
            keys[place], owners[place] = key, owner
            place = (place + 1) % 20
        mask = (owners[None] == batch.index[:, None]) | (owners == -1)[None]
        draw = randomness.generator(settings.seed, "negatives", 0, step)
        expected = proto_nce(
            v,
            v_,
            keys.clone(),
            prototypes,
            batch.index,
            tau=settings.tau,
            mask=mask,
            candidates=[None, torch.randperm(8, generator=draw)[:4]],  # 4 prototypes <= r + 1 = 4; of 8 four
            weight=0.5,
        )
        torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(terms["instance"].loss, expected.instance, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(terms["prototype"].loss, expected.prototype, atol=1e-5, rtol=1e-4)
        theta.zero_grad()
        expected.loss.backward()
        with torch.no_grad():
            for p, p_ in zip(theta.parameters(), theta_.parameters(), strict=True):
                p -= 0.1 * p.grad  # θ = SGD(L, θ)
                p_.copy_(0.9 * p_ + 0.1 * p)  # θ' = 0.9 θ' + 0.1 θ
    for ours, theirs in ((system.query, theta), (system.momentum, theta_)):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)
    assert float(terms["prototype"].chance) == pytest.approx(math.log(4))  # 4 prototypes; r + 1 of 8


@pytest.mark.parametrize("queue", [40, 16])
def test_both_views_in_turn_are_the_mean_of_two_losses(queue):
    """The second turn has the views exchanged and draws of its own; the negatives are the newest keys of both."""
    system = make_system(queries="both", warmup_epochs=0, queue=queue, negatives=3, prototype_weight=0.5).train()
    prototypes, batch, settings = system.e_step(0, unit_features), batch_of(), system.settings
    loss, terms = system.m_step(batch, prototypes)
    loss.backward()

    theta, theta_ = twins(system)
    shuffle = randomness.generator(settings.seed, "shuffle", 0, 0)
    draw = randomness.generator(settings.seed, "negatives", 0, 0)
    x, x_ = batch.views
    first, second = theta(x), theta(x_)
    of_first = encode_keys(theta_, x_, system.context, shuffle)
    of_second = encode_keys(theta_, x, system.context, shuffle)
    keys = torch.cat([of_first, of_second])[-queue:]
    own = torch.arange(len(keys))[None] % 16 == torch.arange(16)[:, None]
    losses = []
    for v, v_ in ((first, of_first), (second, of_second)):
        drawn = [None, torch.randperm(8, generator=draw)[:4]]
        options = {"tau": settings.tau, "mask": own, "candidates": drawn, "weight": 0.5}
        losses.append(proto_nce(v, v_, keys, prototypes, batch.index, **options).loss)
    expected = (losses[0] + losses[1]) / 2
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(system.query.parameters(), theta.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-3)
    chance = math.log(1 + len(keys) - len(keys) // 16)  # guessing among one's own key and the others'
    assert float(terms["instance"].chance) == pytest.approx(chance)


@pytest.mark.parametrize("queries", ["one", "both"])
@pytest.mark.parametrize("own_keys", ["masked", "negatives"])
@pytest.mark.parametrize("start", ["empty", "random"])
def test_keys_join_the_queue_after_the_step(queries, own_keys, start):
    """The negatives of a step are the keys of earlier steps, which its gradient sees as they were."""
    options = {"queue": 40, "queries": queries, "own_keys": own_keys, "queue_start": start, "queue_push": "after"}
    system = make_system("moco", **options).train()
    theta, theta_ = twins(system)
    held = []  # image, key
    if start == "random":
        draw = randomness.generator(system.settings.seed, "queue")
        held = [(None, key) for key in F.normalize(torch.randn(40, 16, generator=draw), dim=1)]
    for step in range(3):
        batch = batch_of(step=step)
        loss, terms = system.m_step(batch, None)
        system.zero_grad()
        loss.backward()

        x, x_ = batch.views
        shuffle = randomness.generator(system.settings.seed, "shuffle", 0, step)
        total, fresh, negatives = 0.0, [], []
        for first, second in [(x, x_), (x_, x)][: 1 if queries == "one" else 2]:
            v, v_ = theta(first), encode_keys(theta_, second, system.context, shuffle)
            fresh += zip(range(16), v_, strict=True)
            for i in range(16):
                others = [key for owner, key in held if owner != i or own_keys == "negatives"]
                scores = torch.stack([v[i] @ v_[i], *(v[i] @ key for key in others)]) / system.settings.tau
                total = total - F.log_softmax(scores, dim=0)[0] / (16 if queries == "one" else 32)
                negatives.append(len(others))
        held = [*held, *fresh][-40:]
        theta.zero_grad()
        total.backward()
        torch.testing.assert_close(loss, total, atol=1e-5, rtol=1e-4)
        assert float(terms["instance"].chance) == pytest.approx(
            sum(math.log(1 + n) for n in negatives) / len(negatives)
        )
        for ours, theirs in zip(system.query.parameters(), theta.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-3)
        system.after_step(batch.progress)  # θ = θ', so that the twin stays


def test_pcl_with_negative_prototypes_as_published():
    """Column i is the prototype of image i; then r of those that no image of the batch has."""
    system = make_system(
        warmup_epochs=0, negatives=2, negative_prototypes="published", clusters=[4, 30], queries="both"
    )
    prototypes, batch = system.e_step(0, unit_features), batch_of()
    _, terms = system.train().m_step(batch, prototypes)
    theta, _ = twins(system)
    draw, total, chances = randomness.generator(system.settings.seed, "negatives", 0, 0), 0.0, []
    for view in batch.views:
        v = theta(view)
        for c in prototypes:
            mates = c.assignment[batch.index].tolist()
            order = torch.randperm(len(c.centroids), generator=draw).tolist()
            columns = mates + [j for j in order if j not in mates][:2]
            logits = v @ c.centroids[columns].T / c.concentration[columns]
            total = total + F.cross_entropy(logits, torch.arange(16)) / 4
            chances.append(math.log(len(columns)))
    assert len({*prototypes[1].assignment[batch.index].tolist()}) < 16, "some images share a prototype"
    assert len({*prototypes[0].assignment[batch.index].tolist()}) == 4, "no other prototype is left"
    torch.testing.assert_close(terms["prototype"].loss, total, atol=1e-5, rtol=1e-4)
    assert float(terms["prototype"].chance) == pytest.approx(sum(chances) / 4)


def test_pcl_with_negative_prototypes_as_published_on_several_gpus():
    """Each part of the batch has its own columns: the prototypes of its images, and r that none of these has."""
    options = {"warmup_epochs": 0, "negatives": 2, "negative_prototypes": "published-parts", "clusters": [4, 30]}
    system = make_system(**options, bn_splits=3)  # 6, 5 and 5 of 16 images
    prototypes, batch = system.e_step(0, unit_features), batch_of()
    _, terms = system.train().m_step(batch, prototypes)
    terms["prototype"].loss.backward()
    theta, _ = twins(system)
    v, index = theta(batch.views[0]), batch.index
    draw, total, chance, counts = randomness.generator(system.settings.seed, "negatives", 0, 0), 0.0, 0.0, set()
    for rows in (range(6), range(6, 11), range(11, 16)):
        for c in prototypes:
            mates = [int(c.assignment[index[i]]) for i in rows]
            order = torch.randperm(len(c.centroids), generator=draw).tolist()
            columns = mates + [j for j in order if j not in mates][:2]
            for place, i in enumerate(rows):
                logits = torch.stack([v[i] @ c.centroids[j] / c.concentration[j] for j in columns])
                total = total - F.log_softmax(logits, dim=0)[place] / 32
                chance += math.log(len(columns)) / 32
            counts.add(len(columns) - len(rows))
    assert len(counts) > 1, "in some part fewer than r others are left"
    torch.testing.assert_close(terms["prototype"].loss, total, atol=1e-5, rtol=1e-4)
    assert float(terms["prototype"].chance) == pytest.approx(chance)
    total.backward()
    for ours, theirs in zip(system.query.parameters(), theta.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-3)


def test_the_twin_is_updated_after_the_step_or_at_the_beginning_of_the_next():
    """Its keys in step t, and the features of an E-step after it, see t or t - 1 updates."""
    for moment, in_step, after_step in (("after", [0, 1], [1, 2]), ("next", [0, 1], [0, 1])):
        system = make_system("moco", twin_update=moment, twin_momentum=0.5).train()
        name, weight = next(iter(system.query.named_parameters()))
        twin = dict(system.momentum.named_parameters())[name]
        history = [weight.detach().clone()]  # θ' after each update
        for step in range(2):
            system.m_step(batch_of(), None)
            torch.testing.assert_close(twin, history[in_step[step]])
            with torch.no_grad():
                weight += 1  # θ = SGD(L, θ)
            history.append(0.5 * history[-1] + 0.5 * weight.detach())
            system.after_step(batch_of().progress)
            torch.testing.assert_close(twin, history[after_step[step]])


def test_pcl_in_warm_up_is_moco():
    """The same loss, gradients and queue, to the bit."""
    losses, gradients = [], []
    for method in ("moco", "pcl"):
        system = make_system(method).train()
        loss, terms = system.m_step(batch_of(), None)
        loss.backward()
        assert list(terms) == ["instance"]
        losses.append(loss)
        gradients.append([*[p.grad for p in system.query.parameters()], system.queue.keys])
    assert torch.equal(*losses)
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_the_prototype_term_grows_over_the_ramp():
    system = make_system(warmup_epochs=2, ramp_epochs=3, prototype_weight=2.0)
    assert [system.weight(epoch) for epoch in range(2, 8)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    at_once = make_system(warmup_epochs=2, prototype_weight=2.0)
    assert [at_once.weight(epoch) for epoch in (2, 3)] == [2.0, 2.0]

    prototypes = system.e_step(2, unit_features)
    loss, terms = system.m_step(batch_of(epoch=3), prototypes)
    torch.testing.assert_close(loss, terms["instance"].loss + 1.0 * terms["prototype"].loss)


def test_the_prototype_term_alone():
    system = make_system(warmup_epochs=0, terms="prototypes", prototype_weight=3.0)
    loss, terms = system.m_step(batch_of(), system.e_step(0, unit_features))
    assert list(terms) == ["prototype"]
    torch.testing.assert_close(loss, 3 * terms["prototype"].loss)


def test_a_warm_e_step_starts_from_the_last_one(monkeypatch):
    from protonce import prototypes

    starts, e_step = [], prototypes.e_step
    monkeypatch.setattr(prototypes, "e_step", lambda *a, **k: starts.append(k["init"]) or e_step(*a, **k))
    warm = make_system(kmeans_init="warm", warmup_epochs=1)
    assert warm.e_step(0, unit_features) is None, "in warm-up for the next start alone"
    first = warm.e_step(1, unit_features)
    warm.e_step(2, unit_features)
    assert starts[0] is None
    assert len(starts[1]) == 2
    assert all(torch.equal(a, c.means) for a, c in zip(starts[2], first, strict=True))
    again = make_system(kmeans_init="warm", warmup_epochs=1)
    again.load_state_dict(warm.state_dict())
    again.e_step(3, unit_features)
    assert all(torch.equal(a, b) for a, b in zip(starts[3], warm.get_extra_state(), strict=True))


def test_a_system_that_does_not_cluster_asks_for_no_features():
    def features():
        raise AssertionError("the pass over the data was made")

    assert make_system("moco").e_step(5, features) is None
    pcl = make_system(warmup_epochs=2)
    assert pcl.e_step(1, features) is None
    with pytest.raises(AssertionError):
        pcl.e_step(2, features)


def test_options_are_a_systems_own():
    entry = registry.find("moco")
    with pytest.raises(UserError, match=r"prototype_weight is an option of pcl.*; moco does not have it"):
        registry.part({"prototype_weight": 2.0}, entry, "protonce")
    with pytest.raises(UserError, match=r"protonce has no setting 'quue'; did you mean queue\?"):
        registry.part({"quue": 2}, entry, "protonce")
    common, options = registry.part({"lr": 0.1, "queue": 64}, entry, "protonce")
    assert (common, options) == ({"lr": 0.1}, {"queue": 64})
    assert registry.part_recipe({"lr": 0.1, "queue": 64, "negatives": 3}, entry) == {"lr": 0.1, "queue": 64}
    swav = registry.find("swav")
    assert registry.part_recipe({"head": "mlp"}, swav) == {"head": "mlp-bn"}, "a recipe for any system"
    assert registry.part_recipe({"head": "linear", "method": "swav"}, swav) == {"head": "linear", "method": "swav"}
    pca = {"head": "linear", "head_init": "pca"}
    assert registry.part_recipe(pca, swav) == pca, "a head of its own"
    with pytest.raises(UserError, match=r"unknown system 'byo'; available systems: .*moco, pcl"):
        registry.find("byo")
    for name, entry in registry.SYSTEMS.items():
        assert entry.system.Options is entry.options
        assert registry.find(entry.system) is entry
        assert not set(entry.options.names()) & set(Settings.names()), name
        resolved = dataclasses.asdict(entry.options().resolve(make_system().settings, 48))
        assert "auto" not in resolved.values()


def test_options_that_are_wrong():
    with pytest.raises(UserError, match="setting queue is 'long'; it takes a whole number or auto"):
        MoCoOptions(queue="long")
    with pytest.raises(UserError, match=r"setting twin_momentum is 1.5; it must be at most 1"):
        PCLOptions(twin_momentum=1.5)
    with pytest.raises(UserError, match="setting terms is 'instance'; it takes both or prototypes"):
        PCLOptions(terms="instance")
    for options in (MoCoOptions, PCLOptions):
        with pytest.raises(UserError, match="choose queue_push after, or own_keys masked"):
            options(own_keys="negatives")
    assert Options().resolve(make_system().settings, 5) == Options()

    @dataclasses.dataclass(frozen=True)
    class Undecided(Options):
        k: int = setting("auto", "an option that nothing resolves", least=1, auto=True)

    with pytest.raises(ValueError, match=r"Undecided.choices has no value for k, which is auto"):
        Undecided().resolve(make_system().settings, 5)


def test_a_class_that_cannot_be_trained_is_refused():
    class Nothing(System):
        pass

    class Named(MoCo):
        terms = ("lr",)

    for method in (5, int, MoCo.__init__):
        with pytest.raises(UserError, match="name a system, or pass a subclass of System"):
            registry.find(method)
    with pytest.raises(UserError, match="Nothing does not define m_step"):
        registry.find(Nothing)
    with pytest.raises(UserError, match="Named has a term with the reserved name lr; rename it"):
        registry.find(Named)
    assert not registry.find(MoCo).is_own


def test_gathered_rows_are_those_of_the_batch():
    """On one process too, where nothing is gathered: what works there works on several."""
    context = Context(batch_size=8)
    rows = torch.zeros(8, 2)
    assert context.gather(rows) is rows
    with pytest.raises(ValueError, match="one row for each of the 8 images of this rank, got 16"):
        context.gather(torch.cat([rows, rows]))


def test_renewed_parameters_are_functions_of_seed_purpose_and_epoch():
    first, second = (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2))
    place, context = first[0].weight.data_ptr(), Context(seed=3)
    optimizer = context.optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1, momentum=0.9)
    (first(torch.randn(4, 3)).square().sum() + second(torch.randn(4, 3)).square().sum()).backward()
    optimizer.step()
    state = torch.get_rng_state()
    context.renew(first, "first", 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert first[0].weight.data_ptr() == place
    assert not any(p in optimizer.state for p in first.parameters())
    assert all(p in optimizer.state for p in second.parameters())
    drawn = first[0].weight.clone()
    for purpose, epoch, same in (("first", 2, True), ("second", 2, False), ("first", 3, False)):
        context.renew(second, purpose, epoch)
        assert torch.equal(second[0].weight, drawn) == same
    bare = nn.Module()
    bare.weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="Module has parameters and no reset_parameters"):
        context.renew(bare, "bare", 0)
