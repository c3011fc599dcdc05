"""Images that count in the prototype term, and keys of the same cluster that are no negatives."""

import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import protonce
from conftest import SMALL, make_system
from processes import run_on_ranks
from protonce.context import Progress
from protonce.losses import accuracy, agreeing, counted_nce, nce
from protonce.memory import EMPTY, NO_IMAGE, Queue
from protonce.methods.base import Batch
from protonce.prototypes import cluster
from two_systems import network

GATED = {**SMALL, "epochs": 3, "warmup_epochs": 1, "gate": "agreeing", "cluster_keys": "masked", "quiet": True}


@pytest.fixture
def system():
    return make_system("pcl", gate="agreeing", queue=40, batch_size=16)


def clustered(system):
    """Prototypes of random features, and the features."""
    draw = torch.Generator().manual_seed(0)
    v_ = F.normalize(torch.randn(48, system.query.dim, generator=draw), dim=1)
    return cluster(v_, system.settings, 0), v_


def batch_of(index):
    draw = torch.Generator().manual_seed(1)
    views = tuple(torch.rand(len(index), 3, 16, 16, generator=draw) for _ in range(2))
    return Batch(views, index, Progress(1, 0, 3, 4))


def step(system, prototypes):
    """Queries and keys of an M-step, and its terms."""
    captured, pairs = [], system.pairs
    system.pairs = lambda batch: captured.extend(pairs(batch)) or captured
    _, terms = system.m_step(batch_of(torch.arange(16)), prototypes)
    return captured[0], terms


def test_an_image_agrees_if_its_prototype_is_the_nearest_of_its_key(system):
    prototypes, v_ = clustered(system)
    keys = F.normalize(v_[:20] + 0.5 * torch.randn(20, v_.shape[1], generator=torch.Generator().manual_seed(2)), dim=1)
    index = torch.arange(20)
    for c in prototypes:
        found = agreeing(keys, index, c)
        for i in range(20):
            nearest = min(range(len(c.means)), key=lambda j, i=i, c=c: float((keys[i] - c.means[j]).norm()))
            assert bool(found[i]) == (nearest == int(c.assignment[i]))
        assert 0 < found.sum() < 20
        assert agreeing(v_, torch.arange(48), c).all()  # of the very features that were clustered


def test_the_loss_is_that_of_the_counted_rows_divided_by_all():
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))
    counted = torch.tensor([1.0, 0, 1, 1, 0, 0])
    loss, right = counted_nce(logits, counted)
    rows = [math.log(sum(math.exp(x) for x in row)) - row[0] for row in logits.tolist()]
    assert loss.item() == pytest.approx((rows[0] + rows[2] + rows[3]) / 6, rel=1e-5)
    assert right.item() == pytest.approx(sum(max(logits[i].tolist()) == logits[i, 0] for i in (0, 2, 3)) / 3)
    everything, hits = counted_nce(logits, torch.ones(6))
    torch.testing.assert_close(everything, nce(logits))
    torch.testing.assert_close(hits, accuracy(logits))
    nothing, _ = counted_nce(logits, torch.zeros(6))
    assert nothing == 0


def test_the_term_by_a_loop(system):
    """Both terms of a step, from the embeddings, the queue and the prototypes."""
    prototypes, _ = clustered(system)
    pair, terms = step(system, prototypes)
    total = 0.0
    shares = []
    for c in prototypes:
        kept = 0
        for i in range(16):
            own = int(c.assignment[i])
            if int((pair.v_[i] - c.means).norm(dim=1).argmin()) != own:
                continue
            kept += 1
            logits = pair.v[i] @ c.centroids.T / c.concentration
            total += (logits.logsumexp(0) - logits[own]).item() / 16
        shares.append(kept / 16)
    assert 0 < sum(shares) / len(shares) < 1
    assert terms["prototype"].loss.item() == pytest.approx(total / len(prototypes), rel=1e-4)
    assert terms["prototype"].share.item() == pytest.approx(sum(shares) / len(shares))
    levels = [share * math.log(len(c.centroids)) for share, c in zip(shares, prototypes, strict=True)]
    assert float(terms["prototype"].chance) == pytest.approx(sum(levels) / len(levels), rel=1e-5)


@pytest.mark.parametrize("negatives", ["others", "published", "published-parts"])
def test_a_random_gate_counts_as_many_images_others(negatives):
    common = {"queue": 40, "batch_size": 16, "negative_prototypes": negatives}
    agree, random = (make_system("pcl", gate=gate, **common) for gate in ("agreeing", "random"))
    prototypes, _ = clustered(agree)
    batch = batch_of(torch.arange(16))
    (loss, terms), (other, others) = (system.m_step(batch, prototypes) for system in (agree, random))
    assert terms["prototype"].share == others["prototype"].share
    assert 0 < terms["prototype"].share < 1
    assert loss != other
    everything = make_system("pcl", **common).m_step(batch, prototypes)[1]["prototype"]
    assert everything.share is None
    assert terms["prototype"].loss < everything.loss


def test_keys_of_the_same_cluster_are_no_negatives():
    queue = Queue(5, 3)
    queue.index[:] = torch.tensor([2, 0, EMPTY, NO_IMAGE, 3])
    assignment = torch.tensor([7, 5, 7, 5])
    found = queue.of_cluster(torch.tensor([0, 1]), assignment)
    assert found.tolist() == [[True, True, False, False, False], [False, False, False, False, True]]


def test_the_instance_term_without_keys_of_the_same_cluster():
    system = make_system("pcl", cluster_keys="masked", queue=40, queue_push="after", batch_size=16)
    prototypes, v_ = clustered(system)
    system.queue.push(v_[8:], torch.arange(8, 48))
    pair, terms = step(system, prototypes)
    finest, tau, total, fewer = prototypes[-1].assignment, system.settings.tau, 0.0, 0
    for i in range(16):
        others = [j for j in range(8, 48) if j != i and finest[j] != finest[i]]
        fewer += len(others) < 39
        logits = torch.cat([(pair.v[i] @ pair.v_[i])[None], v_[others] @ pair.v[i]]) / tau
        total += (logits.logsumexp(0) - logits[0]).item() / 16
    assert fewer > 8
    assert terms["instance"].loss.item() == pytest.approx(total, rel=1e-4)


def train_gated(photos, out, gate):
    """Batches of 15, which two ranks share as 8 and 7; without batch norm, parts of a batch change only rounding."""
    settings = {**GATED, "gate": gate, "batch_size": 15, "head": "mlp"}
    return protonce.train(photos, out, encoder=network(), **settings)


def test_two_processes_count_the_images_of_one(photos, tmp_path):
    run_on_ranks(train_gated, photos, tmp_path / "two", "random")
    one, two = train_gated(photos, tmp_path / "one", "random"), protonce.load(tmp_path / "two")
    for ours, theirs in zip(one.metrics, two.metrics, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert 0 < one.metrics[-1]["prototype_share"] <= 1
    assert two.metrics[-1]["prototype_share"] == pytest.approx(one.metrics[-1]["prototype_share"], abs=1e-3)
    weights = [load_file(run.path / "encoder.safetensors") for run in (one, two)]
    torch.testing.assert_close(*weights, atol=1e-3, rtol=1e-2)
