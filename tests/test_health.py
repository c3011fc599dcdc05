"""Health: each number against another computation, and the words on runs that go well and that do not."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import normalized_mutual_info_score
from torch import nn

import protonce
from conftest import SMALL, stripes
from protonce import health, manifest
from protonce.errors import UserError
from protonce.prototypes import Prototypes, e_step


def clusters_of(features, ks=(3, 5)):
    return e_step(features, ks, tau=0.2, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def features():
    return F.normalize(torch.randn(40, 6, generator=torch.Generator().manual_seed(1)), dim=1)


def test_the_bound_is_equation_10_summed_by_hand(features):
    clusters = clusters_of(features)
    total = 0.0
    for c in clusters:
        for i, v in enumerate(features):
            scores = [math.exp(float(v @ centroid) / float(phi)) for centroid, phi in zip(*c_and_phi(c), strict=True)]
            total -= math.log(scores[int(c.assignment[i])] / sum(scores))
    assert health.bound(features, clusters) == pytest.approx(total / (40 * 2), rel=1e-5)


def c_and_phi(c):
    return c.centroids, c.concentration


def test_the_bound_of_many_images_is_that_of_a_spread_sample(features, monkeypatch):
    clusters = clusters_of(features)
    monkeypatch.setattr(health, "SAMPLE", 4)
    chosen = torch.tensor([0, 13, 26, 39])
    few = [Prototypes(c.centroids, c.means, c.assignment[chosen], c.concentration) for c in clusters]
    assert health.bound(features, clusters) == pytest.approx(health.bound(features[chosen], few))


def test_moving_images_to_their_prototypes_lowers_the_bound(features):
    clusters = clusters_of(features, (4,))
    moved = F.normalize(features + 0.3 * clusters[0].centroids[clusters[0].assignment], dim=1)
    assert health.bound(moved, clusters) < health.bound(features, clusters)


def test_evenness():
    assert health.evenness(torch.tensor([0, 0, 1, 1, 2, 2])) == pytest.approx(1)
    # sizes 3 and 1: -(3/4 log 3/4 + 1/4 log 1/4) / log 2
    assert health.evenness(torch.tensor([0, 0, 0, 1])) == pytest.approx(0.811278, abs=1e-6)
    assert health.evenness(torch.tensor([0, 0])) == 1


def test_effective_rank():
    assert health.effective_rank(torch.eye(5)) == pytest.approx(5)
    assert health.effective_rank(torch.ones(7, 4) / 2) == pytest.approx(1)
    # two directions with 3 and 1 features: exp of the entropy of (3/4, 1/4)
    v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    assert health.effective_rank(v) == pytest.approx(math.exp(0.562335), rel=1e-5)


def test_every_metric_is_in_metrics_jsonl(trained):
    lines = [json.loads(line) for line in (trained.path / "metrics.jsonl").read_text().splitlines()]
    assert lines == trained.metrics
    for line in lines:
        for name in ("cluster_entropy", "smallest_cluster", "largest_cluster", "single_clusters"):
            assert len(line[name]) == len(line["clusters"]) == 2
        assert len(line["agreement"]) == (0 if line["epoch"] == 1 else 2)
        # log(r + 1): once the queue is full, each query sees all of it but its own keys.
        assert math.log(2) < line["instance_chance"] <= math.log(1 + trained.options["queue"])
        assert line["information"] == pytest.approx(line["instance_chance"] - line["instance"], abs=1e-5)
        if "prototype" in line:
            assert line["prototype_chance"] == pytest.approx((math.log(4) + math.log(8)) / 2, abs=1e-5)
    saved = [np.load(trained.path / "assignments" / f"{e:04d}.npz")["assignment_1"] for e in (2, 3)]
    assert lines[2]["agreement"][1] == pytest.approx(normalized_mutual_info_score(*saved), abs=1e-5)
    assert lines[2]["smallest_cluster"][1] == np.bincount(saved[1]).min()
    assert lines[2]["largest_cluster"][1] == np.bincount(saved[1]).max()
    assert lines[2]["single_clusters"][1] == np.count_nonzero(np.bincount(saved[1]) == 1)


def test_the_last_line_is_about_the_momentum_features_of_the_end(trained, photos, monkeypatch):
    """By hand: the encoder that training left, and the clusters with which its last epoch began."""
    (embeddings,) = trained.features(photos, "momentum")
    last = trained.metrics[-1]
    assert last["effective_rank"] == pytest.approx(health.effective_rank(embeddings), rel=1e-4)

    seen = []
    monkeypatch.setattr(health, "after_m_step", lambda v, clusters: seen.append((v, clusters)) or {})
    monkeypatch.setattr(health, "after_e_step", lambda v, clusters, *rest: seen.append((v, clusters)) or {})
    monkeypatch.setattr(protonce.run.Run, "health", health.Verdict("healthy", ""))
    protonce.train(photos, trained.path.parent / "again", epochs=3, warmup_epochs=1, quiet=True, **SMALL)
    (before, clusters), (after, same) = seen[-2:]
    assert all(ours is theirs for ours, theirs in zip(same, clusters, strict=True))
    torch.testing.assert_close(after, embeddings)
    assert health.bound(before, clusters) == pytest.approx(last["bound_before"], rel=1e-4)
    assert health.bound(after, clusters) == pytest.approx(last["bound_after"], rel=1e-4)


def test_older_runs_without_health_metrics_are_not_judged(trained, tmp_path):
    manifest.create(tmp_path)
    manifest.write(tmp_path, "config.yaml", (trained.path / "config.yaml").read_text())
    old = {"epoch": 1, "loss": 2.0, "instance": 2.0}
    manifest.write(tmp_path, "metrics.jsonl", json.dumps(old) + "\n" + json.dumps(trained.metrics[-1]) + "\n")
    assert protonce.load(tmp_path).health.state == health.verdict(trained.metrics[-1:], trained.terms, 16).state


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(0)
    return np.stack([stripes(rng, i % 3) for i in range(192)])


EASY = {"crop_scale": [0.9, 1.0], "flip_p": 0.0, "jitter_p": 0.0, "grey_p": 0.0}  # views that hardly differ


class Constant(nn.Module):
    """An encoder that sees nothing."""

    def __init__(self):
        super().__init__()
        self.out = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.out.expand(len(x), 8)


def test_a_healthy_run_is_called_healthy(pictures, tmp_path, capsys):
    run = protonce.train(pictures, tmp_path / "run", epochs=8, warmup_epochs=4, **EASY, **SMALL)
    assert run.health.state == "healthy", run.metrics
    assert "clusters of" in run.health.words
    assert capsys.readouterr().err.splitlines()[-1] == run.health.words


def test_a_collapsed_run_is_called_collapsed(pictures, tmp_path, capsys):
    run = protonce.train(pictures, tmp_path / "run", encoder=Constant(), epochs=6, warmup_epochs=1, **SMALL)
    assert run.health.state == "collapsed", run.metrics
    assert "the embeddings of all images are nearly equal" in run.health.words
    assert "smaller lr" in run.health.words
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: collapsed")]
    assert len(notes) == 1, "said when it happens, and not every epoch"


class Unlearning(nn.Module):
    """An encoder that learns for 30 batches, and from then on sees less and less of the picture."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3 * 16 * 16, 32)
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x):
        self.batches += self.training
        noise = ((self.batches - 30) / 10).clamp(min=0)
        return self.linear(x.flatten(1) + noise * torch.randn_like(x.flatten(1)))


def test_a_diverging_run_is_called_diverging(pictures, tmp_path):
    run = protonce.train(pictures, tmp_path / "run", encoder=Unlearning(), epochs=8, quiet=True, **EASY, **SMALL)
    assert run.health.state == "diverging", run.metrics
    assert "the loss has increased since epoch" in run.health.words


TERMS = ("instance", "prototype")


def record(epoch, instance, rank=20.0, **more):
    counts = {"clusters": [4], "cluster_entropy": [0.9], "smallest_cluster": [3], "largest_cluster": [9]}
    other = {"agreement": [0.5], "bound_before": 1.0, "bound_after": 0.9, "prototype_chance": 1.4}
    return {
        "epoch": epoch,
        "instance": instance,
        "instance_chance": 5.0,
        "effective_rank": rank,
        **counts,
        **other,
    } | more


@pytest.mark.parametrize(
    ("records", "state", "words"),
    [
        ([record(1, 4.95)], "idle", "little learnt yet"),
        ([record(1, 5.2)], "idle", "a larger lr"),
        ([record(1, 4.0), record(2, 3.0), record(3, 3.6)], "diverging", "since epoch 2"),
        ([record(1, 4.0), record(2, 3.0), record(3, 3.4)], "healthy", "instance loss 3.40 (chance level 5.00)"),
        ([record(1, 4.99, rank=1.01)], "collapsed", "this may be temporary"),
        ([record(1, 4.99, rank=1.01)] * 5, "collapsed", "a smaller lr"),
        ([record(1, 5.6, rank=1.01)], "collapsed", "effective rank 1.01 of 128"),
        ([record(1, 3.0, cluster_entropy=[0.5])], "healthy", "very uneven"),
        # An encoder that never learnt anything had 0.976 to 0.981 of its chance level.
        ([record(1, 4.88)], "idle", "little learnt yet: instance loss 4.88 (chance level 5.00)"),
        ([record(1, 4.55)], "idle", "little learnt yet"),
        ([record(1, 4.45)], "healthy", "instance loss 4.45"),
        # A low rank, whatever the loss is.
        ([record(1, 3.0, rank=1.08)], "idle", "effective rank 1.08 of 128"),
        ([record(1, 3.0, rank=1.01)], "idle", "effective rank 1.01 of 128"),
        ([record(1, 3.0, rank=1.6)], "healthy", "effective rank 1.60 of 128"),
        ([record(1, 3.0, rank=8.46)], "healthy", "effective rank 8.5 of 128"),
        # The prototype term is at its chance level, although the instance term has learnt.
        ([record(1, 3.0, prototype=1.4)], "idle", "little learnt yet: prototype loss 1.40 (chance level 1.40)"),
        ([record(1, 3.0, prototype=1.3)], "healthy", "prototype loss 1.30 (chance level 1.40)"),
        ([record(1, 3.0), record(2, 3.0, prototype=1.5)], "idle", "prototype loss 1.50"),
        # One image in most clusters.
        ([record(1, 3.0, single_clusters=[3])], "fragmented", "3 of 4 clusters hold a single image; choose fewer"),
        ([record(1, 3.0, single_clusters=[2])], "healthy", "4 clusters of 3 to 9 images"),
        ([record(1, 3.0, smallest_cluster=[1], largest_cluster=[1])], "fragmented", "4 of 4 clusters"),
        ([record(1, 3.0, smallest_cluster=[2], largest_cluster=[2])], "healthy", "4 clusters of 2 images"),
        ([record(1, 4.9, single_clusters=[4])], "idle", "moreover, 4 of 4 clusters hold a single image"),
        ([record(1, 4.9, rank=1.01, single_clusters=[4])], "collapsed", "moreover, 4 of 4 clusters"),
        ([record(1, 3.0), record(2, 4.0, single_clusters=[4])], "diverging", "moreover, 4 of 4 clusters"),
    ],
)
def test_words(records, state, words):
    found = health.verdict(records, TERMS, dim=128)
    assert found.state == state
    assert words in found.words


@pytest.mark.parametrize(
    ("ranks", "state", "words"),
    [
        ((20.0, 18.0), "healthy", "similarity loss -0.90; effective rank 18 of 128"),
        ((20.0, 1.01), "collapsed", "effective rank 1.01 of 128"),
        ((20.0, 1.08), "idle", "effective rank 1.08 of 128"),
    ],
)
def test_a_loss_without_a_chance_level_is_judged_by_the_rank(ranks, state, words):
    """As that of BYOL; epochs that were not clustered have no rank, and the last that was counts."""
    lines = [record(e, 0.0, rank=rank) for e, rank in zip((1, 5), ranks, strict=True)] + [{"epoch": 6}]
    lines = [{**line, "loss": -0.9, "similarity": -0.9} for line in lines]
    found = health.verdict(
        [{k: v for k, v in line.items() if "instance" not in k} for line in lines], ["similarity"], 128
    )
    assert found.state == state
    assert words in found.words
    assert health.information({"similarity": -0.9}, ["similarity"]) == {}
    assert health.information({"loss": -0.9}, []) == {}


@pytest.mark.parametrize(("loss", "state"), [(4.9, "healthy"), (5.1, "idle")])
def test_targets_that_move_may_raise_the_loss_up_to_chance(loss, state):
    """As those of DeepCluster: each clustering makes another task, and its classifier starts anew."""
    records = [record(1, 1.0), record(2, loss)]
    assert health.verdict(records, TERMS, dim=128).state == "diverging"
    assert health.verdict(records, TERMS, dim=128, moving=True).state == state


def test_a_run_with_only_the_prototype_term_is_judged_by_it_after_warm_up():
    warm = record(1, 0.5)
    later = [{**record(e, 0.0), "prototype": loss} for e, loss in ((2, 1.0), (3, 1.1), (4, 1.3))]
    for line in later:
        del line["instance"]
    assert health.verdict([warm, *later[:2]], TERMS, dim=128).state == "healthy"
    found = health.verdict([warm, *later], TERMS, dim=128)
    assert found.state == "diverging"
    assert "prototype loss 1.30 (chance level 1.40)" in found.words
    assert "since epoch 2" in found.words


def test_a_finished_run_is_described_by_its_final_prototypes(trained, monkeypatch):
    """Those of metrics.jsonl are of the beginning of the last epoch."""
    healthy = [{**line, "instance": 1.0, "prototype": 0.5, "effective_rank": 9.0} for line in trained.metrics]
    monkeypatch.setattr(protonce.Run, "metrics", healthy)
    last = np.load(trained.path / "assignments" / "0003.npz")
    begin, final = [], []
    for m, c in enumerate(trained.prototypes):
        old, new = np.bincount(last[f"assignment_{m}"]), np.bincount(c.assignment)
        score = normalized_mutual_info_score(last[f"assignment_{m}"], c.assignment)
        begin.append(f"{len(old)} clusters of {old.min()} to {old.max()} images")
        final.append(f"{len(new)} clusters of {new.min()} to {new.max()} images, NMI {score:.2f}")
    assert all(text in trained.health.words for text in final)
    assert not all(text in trained.health.words for text in begin), "else this test shows nothing"
    (trained.path / "encoder.safetensors").unlink()  # the run is not finished
    assert all(text in trained.health.words for text in begin)


def test_one_cluster_an_image_is_called_fragmented(pictures, tmp_path):
    settings = {**SMALL, "clusters": [24]}
    run = protonce.train(pictures[:24], tmp_path / "run", epochs=1, quiet=True, **EASY, **settings)
    assert "24 of 24 clusters hold a single image" in run.health.words
    assert run.health.state != "healthy"


def test_an_encoder_that_does_not_learn_is_not_called_healthy(pictures, tmp_path):
    run = protonce.train(pictures[:64], tmp_path / "run", epochs=1, lr=1e-9, quiet=True, **SMALL)
    assert run.health.state in ("idle", "collapsed"), run.metrics


def test_a_run_without_an_epoch_has_no_health(trained, tmp_path):
    manifest.create(tmp_path)
    manifest.write(tmp_path, "config.yaml", (trained.path / "config.yaml").read_text())
    with pytest.raises(UserError, match="has no finished epoch yet"):
        _ = protonce.load(tmp_path).health
