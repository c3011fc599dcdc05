"""GPU code without a GPU: no tensor is left on the CPU, the numbers are the CPU's, and no step waits for the device."""

import json
import operator

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import protonce
from conftest import SMALL, image_views, make_system, train_until
from pretended_gpu import OnGPU, pretended_gpu
from protonce import kmeans
from protonce.blockwise import blockwise_nce
from protonce.context import Progress
from protonce.data import crops
from protonce.data.views import ImageViews, Samples, ViewSpec
from protonce.evaluate.protocols import evaluate
from protonce.journal import SHOW_EVERY, Journal
from protonce.losses import own_or_last, sample_with_batch
from protonce.memory import Bank
from protonce.methods import pcl
from protonce.methods.base import Batch
from protonce.prototypes import Prototypes, e_step

QUICK = {**SMALL, "kmeans_engine": "torch", "kmeans_iterations": 2, "workers": 0, "epochs": 2, "warmup_epochs": 1}
VARIANTS = {
    "sampled negatives": {
        "negatives": 2,
        "bn_splits": 2,
        "queries": "both",
        "optimizer": "lars",
        "clip_gradients": 0.5,
    },
    "MoCo": {"method": "moco", "recipe": "small-v1", "jitter_p": 0.8, "clusters": [2]},
}


# Older versions of torch need a driver for fake tensors on a GPU.
fake_tensors = pytest.mark.skipif(not hasattr(torch._C, "_ensureCUDADeviceGuardSet"), reason="torch is too old")


@pytest.fixture
def waits(monkeypatch):
    """A pretended GPU, and what makes the host wait for it."""
    with pretended_gpu(monkeypatch) as waits:
        yield waits


OPERATIONS = {
    "sum": operator.add,
    "sum of a number": lambda a, b: a + b.sum(),
    "sum in place": lambda a, b: b.add_(a),
    "number in place": lambda a, b: b.sum().add_(a.sum()),
    "product": lambda a, b: a @ b,
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "where of a number": lambda a, b: torch.where(a > 0, a, torch.zeros(())),
    "index": lambda a, b: a[b[0].long()],
    "indexed": lambda a, b: b[a[0].long()],
    "put": lambda a, b: a.index_put_((b[0].long(),), a.clone()),
    "put values": lambda a, b: a.index_put_((a[0].long(),), b),
    "gather": lambda a, b: a.gather(0, b.long()),
    "scatter": lambda a, b: a.scatter_(0, a.long(), b),
    "index_add": lambda a, b: a.index_add_(0, a[0].long(), b),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 1.0),
    "masked_fill by a number": lambda a, b: a.masked_fill(a > 0, torch.zeros(())),
    "copy": lambda a, b: a.copy_(b),
    "foreach": lambda a, b: torch._foreach_add_([a], [b]),
    "lerp": lambda a, b: a.lerp_(b, 0.5),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "cross_entropy": lambda a, b: F.cross_entropy(a, b[0].long()),
    "linear": lambda a, b: F.linear(a, a, b[0]),
    "conv": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "to": lambda a, b: a + b.to("cuda"),
    "cpu": lambda a, b: a.cpu() + b,
}


MISSED = ("indexed", "foreach")  # a GPU refuses these too, which fake tensors let pass


@fake_tensors
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_pretended_gpu_refuses_what_torchs_fake_tensors_refuse(name, monkeypatch):
    operation, refused = OPERATIONS[name], []
    for context in (FakeTensorMode(), pretended_gpu(monkeypatch)):
        with context:
            try:
                operation(torch.zeros(2, 2, device="cuda"), torch.zeros(2, 2))
                refused.append(False)
            except RuntimeError:
                refused.append(True)
    assert refused == [refused[1] and name not in MISSED, refused[1]]


WAITING = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "bool": lambda x: bool(x[0]),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "copy": lambda x: torch.zeros(3).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "mask that is set": lambda x: x.__setitem__(x > 0, x[:1]),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
}


@pytest.mark.parametrize("look", WAITING.values(), ids=WAITING)
def test_waiting_for_the_device_is_counted(look, waits):
    x = torch.ones(3, device="cuda")
    x[[0, 1]] = x.sum()
    assert not waits
    look(x)
    assert waits


def of_run(run):
    """What a training leaves, without its times and the name of its device."""
    metrics = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in record.items() if not k.endswith("seconds")} for record in metrics]
    return kept, *((run.path / name).read_bytes() for name in ("encoder.safetensors", "prototypes.npz"))


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_training_on_a_gpu_is_training_on_the_cpu(options, photos, tmp_path, monkeypatch):
    """E-step, views, M-step, update, twin, queue, checkpoints, health, prototypes: all on the device."""
    settings, between = {**QUICK, **options}, []
    if options.get("method") == "moco":
        del settings["warmup_epochs"]
    expected = of_run(protonce.train(photos, tmp_path / "cpu", quiet=True, **settings))
    step = Journal.step

    def count(journal, epoch, batch, loss, terms):
        step(journal, epoch, batch, loss, terms)
        if epoch.step % SHOW_EVERY > 1 and epoch.step < journal.steps:
            between.append(dict(OnGPU.waits))
        OnGPU.waits.clear()

    monkeypatch.setattr(Journal, "step", count)
    with pretended_gpu(monkeypatch):
        found = of_run(protonce.train(photos, tmp_path / "gpu", quiet=True, **{**settings, "device": "cuda"}))
    assert found == expected
    assert between == [{}] * settings["epochs"]  # the second of the three steps of each epoch


def test_a_run_continues_on_the_gpu(photos, tmp_path, monkeypatch):
    """Optimizer, queue and prototypes of a checkpoint within an epoch come back to the device."""
    settings = {**QUICK, "optimizer": "adamw", "bn_splits": 1, "kmeans_init": "warm", "kmeans_points": 40}
    expected = of_run(protonce.train(photos, tmp_path / "cpu", quiet=True, **settings))
    settings |= {"device": "cuda", "quiet": True}
    with pretended_gpu(monkeypatch):
        train_until((1, 2), pytest.MonkeyPatch(), photos, tmp_path / "run", settings)
        assert of_run(protonce.train(photos, tmp_path / "run", quiet=True, resume=True)) == expected


EVALUATIONS = {
    "knn": {},
    "linear": {"epochs": 2},
    "linear with crops": {"views": "augmented", "epochs": 2, "cells": 2},
    "semisup": {"shares": [0.5], "draws": 1, "epochs": 2},
    "lowshot": {"shots": [2], "draws": 1, "classifier": "mean"},
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations_on_a_gpu_are_those_on_the_cpu(name, trained, others, monkeypatch):
    options = {"test": others, "quiet": True, "again": True, **EVALUATIONS[name]}
    expected = evaluate(trained, name.split()[0], **options)
    for file in (trained.path / "features").glob("*.npy"):
        file.unlink()
    with pretended_gpu(monkeypatch) as waits:
        found = evaluate(protonce.load(trained.path), name.split()[0], **options)
        assert waits["copy to the CPU"] > 0  # features came from there
    assert found == expected


def test_features_on_a_gpu_are_those_on_the_cpu(trained, others, monkeypatch):
    """All at once, and those of the head from kept features of the backbone."""
    expected = trained.features(others, "backbone", "query", "momentum")
    for file in (trained.path / "features").glob("*.npy"):
        file.unlink()
    with pretended_gpu(monkeypatch):
        run = protonce.load(trained.path)
        found = [run.features(others, kind)[0] for kind in ("backbone", "momentum", "query")]
    for a, b in zip(found, (expected[0], expected[2], expected[1]), strict=True):
        assert torch.equal(a, b)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def split_clusters(device):
    points = drawn(30, 4).to(device)
    far = points[:3] + torch.tensor([[0.0], [50.0], [60.0]]).to(device)  # two of them have no members
    return kmeans._lloyd_torch(points, far, iterations=1)


def e_step_of_equals(device):
    points = F.normalize(drawn(5, 4), dim=1).repeat(6, 1).to(device)
    generator = torch.Generator().manual_seed(0)
    found = e_step(points, [3, 9], tau=0.1, generator=generator, iterations=1, starts=2, engine="torch")
    return torch.cat([c.concentration for c in found])


def blockwise(device):
    query = F.normalize(drawn(6, 4), dim=1).to(device).requires_grad_()
    own, chosen = torch.arange(6).to(device), torch.arange(3, 90).to(device)
    dropped = own_or_last(chosen, own, 90)
    loss, _ = blockwise_nce(query, drawn(90, 4).to(device), drawn(90).exp().to(device), own, chosen, dropped)
    loss.backward()
    return query.grad


def published_negatives(device):
    return sample_with_batch(torch.tensor([3, 3, 8]).to(device), 20, 5, torch.Generator().manual_seed(0))


def bank(device):
    bank = Bank(8, 4, torch.Generator().manual_seed(0)).to(device)
    bank.update(torch.tensor([1, 3]).to(device), drawn(2, 4).to(device), momentum=0.5)
    return bank.features


def tiles(device):
    return crops.cut_tiles(drawn(2, 3, 9, 9).to(device), 3, 2, drawn(2, 18).sigmoid().numpy())


def large_views(device):
    pixels = (drawn(8, 3, 16, 16).sigmoid() * 255).byte().to(device)
    samples = Samples([pixels, pixels], torch.arange(8), seed=0, epoch=0)
    views = image_views()
    solarised = ImageViews(views.settings, [ViewSpec("query", solarise_p=0.5), ViewSpec("key", blur_p=1.0)])
    return torch.cat([views.plain(samples), *solarised.train(samples)])


PARTS = (split_clusters, e_step_of_equals, blockwise, published_negatives, bank, tiles, large_views)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_parts_on_a_gpu_are_those_on_the_cpu(part, waits):
    found = part("cuda")
    assert isinstance(found, OnGPU)
    assert torch.equal(found.host, part("cpu"))


@pytest.mark.parametrize("part", [blockwise, published_negatives, tiles, large_views], ids=lambda part: part.__name__)
def test_parts_of_a_step_do_not_wait(part, waits):
    part("cuda")
    assert not waits


STEPS = {
    "MoCo": ("moco", {}),
    "all negatives": ("pcl", {"bn_splits": 2}),
    "sampled negatives": ("pcl", {"negatives": 2, "queries": "both"}),
    "blocks of negatives": ("pcl", {"negatives": 2100}),
    "published": ("pcl", {"negatives": 2, "negative_prototypes": "published", "queue_push": "after"}),
    "published, in parts": ("pcl", {"negatives": 2, "negative_prototypes": "published-parts", "twin_update": "next"}),
}


@fake_tensors
@pytest.mark.parametrize(("method", "options"), STEPS.values(), ids=STEPS)
def test_a_step_under_torchs_fake_tensors(method, options, monkeypatch):
    """The loss and what is logged of it; these tensors raise where the host would wait. No backward pass: see above."""
    monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    monkeypatch.setattr(pcl, "sample_candidates", lambda k, r, _: torch.arange(r) if k > r + 1 else None)
    system = make_system(method, **options)
    with FakeTensorMode() as mode:
        system._apply(lambda tensor: mode.from_tensor(tensor).to("cuda"))
        views = tuple(torch.rand(16, 3, 16, 16, device="cuda") for _ in range(2))
        batch = Batch(views, torch.arange(16, device="cuda"), Progress(0, 0, 3, 1))
        means, assignment = torch.rand(2200, 16, device="cuda"), torch.arange(48, device="cuda")
        prototypes = Prototypes(means, means, assignment, means[:, 0])
        loss, terms = system.m_step(batch, [prototypes] if method == "pcl" else None)
        system.after_step(batch.progress)
        logged = [loss, *(t for term in terms.values() for t in (term.loss, term.accuracy))]
        assert {t.device.type for t in logged} == {"cuda"}
