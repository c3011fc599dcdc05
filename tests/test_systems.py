"""Every kind of system that the interface must carry, each as small as it can be; and the example of the docs.

A system here is trained, stopped and resumed to the byte, by the same loop and with no other change.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import protonce
from conftest import SMALL, train_until
from processes import run_on_ranks
from protonce.data.views import ViewSpec
from protonce.errors import UserError
from protonce.evaluate.protocols import evaluate
from protonce.fields import setting
from protonce.memory import Bank
from protonce.methods.base import UNKNOWN, System, Term
from protonce.methods.moco import MoCo
from protonce.methods.options import Options
from protonce.momentum import rising_momentum, twin_of, update_twin
from protonce.prototypes import cluster
from protonce.report.page import write_report

pytestmark = pytest.mark.usefixtures("quick_page")
DOCS = Path(__file__).parents[1] / "docs" / "new-system.md"
EXAMPLE = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)[1]


class Supervised(System):
    """One view, labels, a classifier at ten times the rate; images without a label do not count."""

    terms = ("labels",)
    needs_labels = True

    def __init__(self, setup):
        super().__init__(setup)
        self.classifier = nn.Linear(self.query.feature_dim, setup.classes)

    @classmethod
    def views(cls, settings, options):
        return (ViewSpec("view", size=12),)

    def parameter_groups(self):
        backbone = {"params": list(self.query.backbone.parameters())}
        return [backbone, {"params": list(self.classifier.parameters()), "lr_scale": 10.0, "weight_decay": 0.0}]

    def m_step(self, batch, state):
        (x,) = batch.views
        assert x.shape[1:] == (3, 12, 12)
        # A rank may have fewer labels than another, or none: the loss is that of the whole batch.
        scores = self.context.gather(self.classifier(self.query.features(x)))  # (B, classes)
        labels = self.context.gather(batch.labels)  # (B,)
        known = (labels != UNKNOWN).sum()
        loss = F.cross_entropy(scores, labels, ignore_index=UNKNOWN, reduction="sum") / known.clamp_min(1)
        right = (scores.argmax(dim=1) == labels).sum() / known.clamp_min(1)
        return loss, {"labels": Term(loss, float(np.log(scores.shape[1])), right)}


class ByolLike(System):
    """A predictor that is trained, and a twin whose momentum rises."""

    terms = ("distance",)

    def __init__(self, setup):
        super().__init__(setup)
        self.momentum = twin_of(self.query)
        self.predictor = nn.Linear(self.query.dim, self.query.dim)

    def m_step(self, batch, state):
        x1, x2 = batch.views
        with torch.no_grad():
            target = self.momentum(x2)
        loss = (F.normalize(self.predictor(self.query(x1)), dim=1) - target).square().sum(dim=1).mean()
        return loss, {"distance": Term(loss)}

    def after_step(self, progress):
        update_twin(self.query, self.momentum, rising_momentum(0.9, progress))


@dataclass(frozen=True)
class SwavOptions(Options):
    """Options of a system like SwAV."""

    targets: int = setting(6, "learnt prototypes", least=2)
    frozen_steps: int = setting(2, "steps in which they stay what they are", least=0)


class SwavLike(System):
    """Two large and six small views, learnt prototypes that are frozen at first."""

    Options = SwavOptions

    def __init__(self, setup):
        super().__init__(setup)
        self.targets = nn.Linear(self.query.dim, self.options.targets, bias=False)

    @classmethod
    def views(cls, settings, options):
        small = (ViewSpec(f"small {i}", size=8, crop_scale=[0.05, 0.3]) for i in range(6))
        return (ViewSpec("query"), ViewSpec("key"), *small)

    def m_step(self, batch, state):
        assert [x.shape[-1] for x in batch.views] == [16] * 2 + [8] * 6
        scores = [self.targets(self.query(x)) for x in batch.views]  # (b, targets) each
        code = self.context.gather(scores[0].detach()).softmax(dim=1)  # of the whole batch
        code = self.context.part(code / code.sum(dim=0))
        loss = -sum((code * s.log_softmax(dim=1)).sum(dim=1).mean() for s in scores[1:])
        return loss, {}

    def after_backward(self, progress):
        self.seen = self.targets.weight.detach().clone()
        if progress.done < self.options.frozen_steps:
            self.targets.weight.grad = None

    def after_step(self, progress):
        moved = not torch.equal(self.seen, self.targets.weight)
        assert moved == (progress.done >= self.options.frozen_steps)


class DeepClusterLike(System):
    """Pseudo-labels by k-means, a classifier made anew each epoch, and images drawn evenly over the clusters."""

    terms = ("pseudo",)

    def __init__(self, setup):
        super().__init__(setup)
        self.classifier = nn.Linear(self.query.feature_dim, setup.settings.clusters[-1])

    @classmethod
    def views(cls, settings, options):
        return (ViewSpec("view"),)

    def e_step(self, epoch, features):
        found = cluster(features(), self.settings, epoch)[-1]
        before = self.classifier.weight.data_ptr()
        self.context.renew(self.classifier, "classifier", epoch)
        assert self.classifier.weight.data_ptr() == before
        assert self.classifier.weight not in self.context.optimizer.state
        return {"labels": found.assignment, "sizes": [int(z) for z in found.assignment.bincount()]}

    def sampler(self, epoch, state):
        weights = (1 / torch.tensor(state["sizes"]))[state["labels"]]
        generator = torch.Generator().manual_seed(epoch)
        size = self.settings.batch_size
        return weights.multinomial(self.steps * size, replacement=True, generator=generator).view(-1, size)

    def m_step(self, batch, state):
        loss = F.cross_entropy(self.classifier(self.query.features(*batch.views)), state["labels"][batch.index])
        return loss, {"pseudo": Term(loss)}


class BankPrototypes(System):
    """Prototypes from a bank, not from V'; and a draw of its own, which resuming must not change."""

    terms = ("bank", "now and then")

    def __init__(self, setup):
        super().__init__(setup)
        self.bank = Bank(self.n, self.query.dim, torch.Generator().manual_seed(1))

    def e_step(self, epoch, features):
        found = self.context.on_first(lambda: cluster(self.bank.features, self.settings, epoch))
        return {"found": found, "noise": 0.1 * torch.rand(())}

    def prototypes(self, state):
        return state["found"]

    def m_step(self, batch, state):
        finest = state["found"][-1]
        v = self.query(batch.views[0])
        loss = F.cross_entropy(v @ finest.centroids.T / (0.5 + state["noise"]), finest.assignment[batch.index])
        self.new = self.context.gather(batch.index), self.context.gather(v.detach())
        rare = {"now and then": Term(loss.new_tensor(3.0))} if batch.progress.step == 1 else {}
        return loss, {"bank": Term(loss), **rare}

    def after_step(self, progress):
        self.bank.update(*self.new)


class BankLike(System):
    """An image and its tiles against a bank of all images."""

    terms = ("bank", "tiles")

    def __init__(self, setup):
        super().__init__(setup)
        self.bank = Bank(self.n, self.query.dim, torch.Generator().manual_seed(self.settings.seed))

    @classmethod
    def views(cls, settings, options):
        return (ViewSpec("image"), ViewSpec("tiles", size=18, tiles=3, tile_size=5))

    def m_step(self, batch, state):
        image, tiles = batch.views
        assert tiles.shape[1:] == (9, 3, 5, 5)
        index = self.context.gather(batch.index)
        v = self.context.gather(self.query(image))  # (B, d)
        parts = self.context.gather(self.query(tiles.flatten(0, 1)).unflatten(0, (-1, 9)).mean(dim=1))
        first, second = (F.cross_entropy(x @ self.bank.features.T / 0.1, index) for x in (v, parts))
        self.new = (index, v.detach())
        return first + second, {"bank": Term(first, np.log(self.n)), "tiles": Term(second, np.log(self.n))}

    def after_step(self, progress):
        self.bank.update(*self.new, momentum=0.5)


class MyMoCo(MoCo):
    """A user's subclass of a system of the program, with a recipe of its own."""

    recipe = "small-v1"


class OneGranularity(BankPrototypes):
    """A mistake: prototypes are asked for at each granularity."""

    def prototypes(self, state):
        return state["found"][-1:]


def simsiam():
    """The class of the docs."""
    module = {"__name__": "simsiam"}
    exec(EXAMPLE, module)
    return module["SimSiam"]


SETTINGS = {**SMALL, "epochs": 3, "quiet": True}
SimSiam = simsiam()
KINDS = {
    Supervised: {},
    ByolLike: {"optimizer": "adamw", "lr": 0.001},
    SwavLike: {"targets": 5, "optimizer": "lars", "clip_gradients": 1.0, "frozen_steps": 4},
    DeepClusterLike: {"record_every": 3, "lr_warmup_epochs": 1},
    BankLike: {"image_size": 16},
    BankPrototypes: {},
    MyMoCo: {"queue": 20, "lr_final": 0.001},
}


@pytest.mark.parametrize("kind", [*KINDS, SimSiam], ids=lambda kind: kind.__name__)
def test_every_kind_of_system_trains_and_resumes_to_the_byte(photos, tmp_path, monkeypatch, kind):
    options = {**SETTINGS, **KINDS.get(kind, {}), "method": kind}
    whole = protonce.train(photos, tmp_path / "whole", **options)
    assert whole.title == kind.__name__
    assert whole.terms == list(kind.terms)
    first, *_, last = whole.metrics
    assert all(np.isfinite(record["loss"]) for record in whole.metrics)
    assert all(term in last for term in kind.terms)
    assert "clusters" in first
    assert "clusters" in last, "the first and the last epoch are recorded"

    for stop in ((1, 2), (2, None)) if kind is BankPrototypes else ((1, 2),):  # within an epoch, and at its end
        out = tmp_path / f"stopped at {stop}"
        train_until(stop, monkeypatch, photos, out, options)
        stopped = protonce.train(photos, out, resume=True, **options)
        for name in ("encoder.safetensors", "prototypes.npz"):
            assert (whole.path / name).read_bytes() == (stopped.path / name).read_bytes(), name
        lines = [[{k: v for k, v in r.items() if "seconds" not in k} for r in run.metrics] for run in (whole, stopped)]
        assert lines[0] == lines[1]
    untrained = protonce.encoder.build(whole.settings).state_dict()
    moved = [
        k
        for k, v in whole.encoders[0].state_dict().items()
        if k.endswith("conv1.weight") and not torch.equal(v, untrained[k])
    ]
    assert moved, "it was trained"


def test_a_term_of_some_steps_is_the_mean_of_those(photos, tmp_path):
    run = protonce.train(photos, tmp_path / "r", method=BankPrototypes, **{**SETTINGS, "epochs": 1})
    assert run.metrics[0]["now and then"] == 3.0


def test_the_page_says_whether_training_saw_the_labels(photos, tmp_path):
    run = protonce.train(photos, tmp_path / "r", method=Supervised, **{**SETTINGS, "epochs": 1})
    assert "3 classes (used in training)" in write_report(run, quiet=True).read_text()
    run = protonce.train(photos, tmp_path / "m", method=MyMoCo, epochs=1, device="cpu", width=4, quiet=True)
    assert run.config["recipe"] == "small-v1"
    assert "3 classes (not used in training)" in write_report(run, quiet=True).read_text()


@pytest.fixture(scope="module")
def on_two_ranks(photos, tmp_path_factory):
    from two_systems import train_all

    out = tmp_path_factory.mktemp("two")
    run_on_ranks(train_all, photos, out)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_two_ranks_train_what_one_process_trains(photos, tmp_path, on_two_ranks, kind):
    """Uneven parts of a batch, losses of a part and of the whole, banks, predictors: the weights are the same."""
    from two_systems import train

    one, two = train(photos, tmp_path, kind), protonce.load(on_two_ranks / kind.__name__)
    for ours, theirs in zip(one.metrics, two.metrics, strict=True):
        for name in ("loss", *kind.terms):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4), name
    ours, theirs = (load_file(run.path / "encoder.safetensors") for run in (one, two))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_the_example_of_the_docs_trains_on_two_ranks(photos, tmp_path, on_two_ranks):
    """Batch norm of its predictor sees a part of the batch on each rank, so that losses differ a little."""
    from two_systems import train

    one, two = train(photos, tmp_path, SimSiam), protonce.load(on_two_ranks / "SimSiam")
    assert [r["loss"] for r in two.metrics] == pytest.approx([r["loss"] for r in one.metrics], abs=0.05)
    assert two.finished


def example(tmp_path, **more):
    """The class of the docs, as a module that Python can start."""
    options = {k: v for k, v in SETTINGS.items() if k != "quiet"} | {"epochs": 3, "hidden": 8, **more}
    text = EXAMPLE.replace('"builtin", "runs/simsiam"', "sys.argv[1], sys.argv[2]").replace(
        "epochs=20, hidden=32", f"**{options}"
    )
    path = tmp_path / "simsiam.py"
    path.write_text("import sys\n" + text)
    return path


def test_the_example_of_the_docs_is_short():
    assert len(EXAMPLE.strip().splitlines()) <= 60


@pytest.mark.slow
def test_the_example_of_the_docs_works_everywhere(photos, tmp_path):
    """Trained from its file: progress, health, page, evaluation."""
    module = example(tmp_path)
    command = [sys.executable, module, photos, tmp_path / "one"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "SimSiam, recipe small-v2" in done.stderr
    assert re.search(r"epoch 3/3  similarity loss -0\.\d+  ", done.stderr)
    run = protonce.load(tmp_path / "one")
    assert run.health.words in done.stdout
    assert run.options == {"hidden": 8}
    assert run.health.state in ("healthy", "idle", "collapsed"), "judged by the rank alone"
    page = write_report(run, quiet=True).read_text()
    assert "SimSiam (one)" in page
    result = evaluate(run, "knn", quiet=True)
    assert 0 <= result["metrics"]["accuracy"] <= 1

    with pytest.raises(UserError, match="was started with a class as method=; resume it the same way"):
        protonce.train(photos, run.path, resume=True, quiet=True)


def test_a_system_and_its_options_are_checked(photos, tmp_path):
    class Shadow(ByolLike):
        @dataclass(frozen=True)
        class Options(Options):
            lr: float = setting(0.1, "a setting of all systems", above=0)

    with pytest.raises(UserError, match="Shadow has an option with the reserved name lr"):
        protonce.train(photos, tmp_path / "r", method=Shadow, **SETTINGS)
    with pytest.raises(UserError, match=r"prototype_weight is an option of pcl.*; byollike does not have it"):
        protonce.train(photos, tmp_path / "r", method=ByolLike, prototype_weight=2, **SETTINGS)
    with pytest.raises(UserError, match=r"Supervised needs labels, and .* has none"):
        protonce.train(
            photos / "slope0", tmp_path / "r", method=Supervised, **{**SETTINGS, "clusters": [2], "batch_size": 8}
        )
    assert not (tmp_path / "r").exists()

    class Wrong(ByolLike):
        def sampler(self, epoch, state):
            return torch.arange(self.n)

    with pytest.raises(ValueError, match=r"Wrong.sampler returned \(48,\); it must return \(3, 16\)"):
        protonce.train(photos, tmp_path / "a", method=Wrong, **SETTINGS)

    class Unnamed(ByolLike):
        terms = ()

    with pytest.raises(ValueError, match=r"returned {'distance'}, which its `terms` do not name"):
        protonce.train(photos, tmp_path / "b", method=Unnamed, **SETTINGS)

    words = r"OneGranularity.prototypes returned 1 sets; it must return one for each of \[4, 8\]"
    with pytest.raises(ValueError, match=words):
        protonce.train(photos, tmp_path / "d", method=OneGranularity, **SETTINGS)

    class Odd(ByolLike):
        def e_step(self, epoch, features):
            return object()

    with pytest.raises(TypeError, match="the state contains a object; e_step may return tensors"):
        protonce.train(photos, tmp_path / "c", method=Odd, **SETTINGS)


def test_images_without_a_label_are_unknown(tmp_path, photos):
    listed = sorted(photos.rglob("*.png"))
    rows = "".join(f"{path},{path.parent.name if i % 2 else ''}\n" for i, path in enumerate(listed))
    (tmp_path / "table.csv").write_text("path,label\n" + rows)
    seen = []

    class Look(Supervised):
        def m_step(self, batch, state):
            seen.append((batch.index, batch.labels))
            return super().m_step(batch, state)

    protonce.train(tmp_path / "table.csv", tmp_path / "r", method=Look, **{**SETTINGS, "epochs": 1})
    for index, labels in seen:
        for i, label in zip(index.tolist(), labels.tolist(), strict=True):
            assert label == (int(listed[i].parent.name[-1]) if i % 2 else UNKNOWN)


@pytest.mark.parametrize(("every", "expected"), [(3, [1, 4, 5]), (9, [1, 5])])
def test_what_is_recorded_changes_nothing_of_what_is_learnt(photos, tmp_path, every, expected):
    """Epochs without an E-step are clustered now and then, the first and the last always; PCL's E-steps are kept."""
    options = {**SETTINGS, "epochs": 5, "record_every": every}
    run = protonce.train(photos, tmp_path / "moco", method="moco", **options)
    assert run.recorded_epochs == expected
    assert sorted(int(p.stem) for p in (run.path / "assignments").iterdir()) == expected
    assert [("effective_rank" in r) for r in run.metrics] == [e in expected for e in range(1, 6)]
    assert run.health.state in ("healthy", "idle")
    always = protonce.train(photos, tmp_path / "always", method="moco", **{**options, "record_every": 1})
    for name in ("encoder.safetensors", "prototypes.npz"):
        assert (run.path / name).read_bytes() == (always.path / name).read_bytes()
    pcl = protonce.train(photos, tmp_path / "pcl", warmup_epochs=2, **options)
    assert pcl.recorded_epochs == sorted({*expected, 3, 4, 5})
    evaluate(run, "clustering", quiet=True)
    assert (
        json.loads((run.path / "evaluations" / "clustering.json").read_text())["details"]["ami_over_training"]["epochs"]
        == expected
    )
    write_report(run, quiet=True)
