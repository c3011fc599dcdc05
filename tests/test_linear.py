"""Softmax regression and fine-tuning: against autograd, torch's SGD and scikit-learn; and the protocol on a run."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn

from conftest import picture
from protonce.data.sources import open_source
from protonce.errors import UserError
from protonce.evaluate import linear, protocols, regression, semisup
from protonce.evaluate.options import PROTOCOLS
from protonce.evaluate.protocols import evaluate
from protonce.evaluate.regression import Regression, Schedule
from protonce.features import Unchanged


def problem(n=300, seed=0, noise=1.0):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 4, (n,), generator=generator)
    centres = torch.randn(4, 10, generator=torch.Generator().manual_seed(9))
    return centres[codes] + noise * torch.randn(n, 10, generator=generator), codes


def test_steps_are_those_of_torchs_sgd():
    """Three regressions side by side are three of torch's linear layers, each at its own rate."""
    x, codes = problem()
    rates = torch.tensor([0.01, 0.1, 1.0])
    ours = Regression.zero(3, 4, 10)
    theirs = [nn.Linear(10, 4) for _ in rates]
    for layer in theirs:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    optimizers = [torch.optim.SGD(m.parameters(), r, momentum=0.9) for m, r in zip(theirs, rates.tolist(), strict=True)]
    for rows in torch.arange(300).split(64):
        ours.step(x[rows], codes[rows], rates)
        for layer, optimizer in zip(theirs, optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(layer(x[rows]), codes[rows]).backward()
            optimizer.step()
    for i, layer in enumerate(theirs):
        torch.testing.assert_close(ours.weight[i], layer.weight.data, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(ours.logits(x)[:, i], layer(x).detach(), atol=1e-4, rtol=1e-4)


def test_it_ends_where_logistic_regression_does():
    (x, codes), (test, truth) = problem(noise=3), problem(seed=1, noise=3)
    x, test = regression.standardise(x, test)
    found = regression.fit(x, codes, 4, [0.3], Schedule(200, [0.6, 0.8], 0.1, 300), seed=0).logits(test)[:, 0]
    theirs = LogisticRegression(C=1e6, max_iter=5000).fit(x.numpy(), codes.numpy())
    assert regression.top(found, truth, 1) == pytest.approx(theirs.score(test.numpy(), truth.numpy()), abs=0.015)
    probability = torch.from_numpy(theirs.predict_proba(test.numpy()))
    assert (found.softmax(dim=1) - probability).abs().mean() < 0.03


def test_the_rate_is_chosen_on_a_held_out_fifth():
    """Each rate's accuracy is that of a classifier which never saw the fifth."""
    x, codes = problem()
    schedule = Schedule(5, [0.6], 0.1, 32)
    found = regression.choose_rate(x, codes, 4, schedule, seed=3)
    assert list(found) == list(regression.RATES)
    held = regression.order(300, 3, 0, "linear held out")[:60]
    rest = torch.tensor([i for i in regression.order(300, 3, 0, "linear held out").tolist() if i not in held.tolist()])
    train, test = regression.standardise(x[rest], x[held])
    alone = regression.fit(train, codes[rest], 4, [0.03], schedule, seed=3).logits(test)[:, 0]
    assert found[0.03] == pytest.approx(regression.top(alone, codes[held], 1))
    assert len(set(found.values())) > 1
    assert regression.best_rate({0.1: 0.5, 0.3: 0.7, 1.0: 0.7, 3.0: 0.7}) == 1.0  # of several the middle one


def test_learning_rates_fall_as_in_the_paper():
    imagenet, tuning = Schedule(100, [0.6, 0.8], 0.1, 256), Schedule(20, [0.6, 0.8], 0.2, 256)
    assert [imagenet.rate(e) for e in (0, 59, 60, 79, 80, 99)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    assert [tuning.rate(e) for e in (11, 12, 15, 16, 19)] == pytest.approx([1, 0.2, 0.2, 0.04, 0.04])


def test_top_by_hand():
    logits = torch.tensor([[0.1, 0.9, 0.5], [3.0, 2.0, 1.0]])
    assert regression.top(logits, torch.tensor([2, 0]), 1) == 0.5
    assert regression.top(logits, torch.tensor([2, 0]), 2) == 1
    assert regression.top(logits, torch.tensor([0, 2]), 5) == 1  # there are but three


def test_a_share_of_the_labels_is_stratified():
    codes = np.repeat([0, 1, 2], [200, 50, 3])
    part = semisup.part_of(codes, 0.1, seed=0, number=0)
    assert np.bincount(codes[part]).tolist() == [20, 5, 1]  # at least one of each
    assert (np.sort(part) == part).all()
    assert not np.array_equal(part, semisup.part_of(codes, 0.1, seed=0, number=1))
    assert len(semisup.part_of(codes, 1.0, 0, 0)) == 253


def test_fine_tuning_learns_and_does_not_change_the_encoder(trained, photos):
    from protonce.data.sources import open_source
    from protonce.data.views import crop_views
    from protonce.features import extract

    source = open_source(photos)
    codes = torch.tensor([int(label[-1]) for label in source.labels])
    encoder = trained.encoders[0]
    settings = {"schedule": Schedule(30, [0.6, 0.8], 0.2, 16), "lr": 0.05, "classifier_lr": 1.0, "weight_decay": 5e-4}
    loader = trained.loader(source, views=crop_views(trained.settings))
    with Unchanged(encoder):
        model = semisup.fine_tune(encoder, loader, codes, 3, seed=0, **settings)
        again = semisup.fine_tune(encoder, loader, codes, 3, seed=0, **settings)
    assert regression.top(extract(model, trained.loader(source)), codes, 1) > 0.8
    for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    pairs = zip(model.encoder.backbone.parameters(), encoder.backbone.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_first_of_classes_with_equal_scores_is_the_highest(k):
    rng = np.random.default_rng(0)
    whole, codes = rng.integers(0, 4, (200, 7)), rng.integers(0, 7, 200)
    order = [sorted(range(7), key=lambda c: (-row[c], c)) for row in whole]
    expected = np.mean([code in best[:k] for code, best in zip(codes, order, strict=True)])
    logits = torch.from_numpy(whole + rng.uniform(-1e-6, 1e-6, whole.shape)).float()
    assert regression.top(logits, torch.from_numpy(codes), k) == pytest.approx(expected)


def test_augmented_views_follow_the_paper(trained, others, monkeypatch):
    """Another crop in each epoch, a frozen backbone, and after an interruption the same classifier."""
    options = {"views": "augmented", "epochs": 4, "lr": 0.5, "batch_size": 16}
    whole = evaluate(trained, "linear", test=str(others), quiet=True, name="whole", **options)
    assert whole["settings"]["lr"] == 0.5
    step, steps = regression.Regression.step, []

    def until_the_third_epoch(self, x, codes, rates):
        if len(steps) == 7:
            raise KeyboardInterrupt
        steps.append(x.clone())
        step(self, x, codes, rates)

    monkeypatch.setattr(regression.Regression, "step", until_the_third_epoch)
    with pytest.raises(KeyboardInterrupt):
        evaluate(trained, "linear", test=str(others), quiet=True, **options)
    order = [regression.order(48, 0, epoch).tolist().index(0) for epoch in range(2)]
    first, second = (torch.cat(steps[3 * e : 3 * e + 3])[at] for e, at in enumerate(order))
    assert not torch.allclose(first, second)  # the same image in two epochs
    steps.clear()
    monkeypatch.setattr(regression.Regression, "step", lambda *a: (steps.append(1), step(*a))[1])
    assert evaluate(trained, "linear", test=str(others), quiet=True, **options) == whole
    assert len(steps) == 2 * 3


def test_the_papers_settings_are_the_defaults(trained, monkeypatch):
    """ImageNet: 100 epochs at 10; Places205: 40 at 0.3, its feature map pooled to 2 x 2."""
    seen = {}

    def note(task, schedule, rate, cells):
        seen.update(schedule=schedule, rate=rate, cells=cells)
        return torch.zeros(len(task.test), 3)

    monkeypatch.setattr(linear, "_augmented", note)
    photos = trained.source()
    for spec, epochs, rate, cells in (
        ("ImageNet:x", 100, 10.0, 1),
        ("Places205:x", 40, 0.3, 2),
        ("ImageNet@train:x", 100, 10.0, 1),
        ("Places205@train:x", 40, 0.3, 2),
    ):
        photos.spec = spec
        task = protocols.Task(trained, photos, photos, PROTOCOLS["linear"](), protocols.Steps(quiet=True), None)
        linear.protocol(task)
        assert (seen["schedule"].epochs, seen["rate"], seen["cells"]) == (epochs, rate, cells)
        assert seen["schedule"] == regression.Schedule(epochs, [0.6, 0.8], 0.1, 256)


def test_a_folder_of_imagenet_gets_the_papers_protocol(trained, tmp_path, monkeypatch, capsys):
    """It is recognised by its classes; the output says which protocol was used, and how to get the other."""
    for i in range(1000):
        (tmp_path / "train" / f"n{i:08d}").mkdir(parents=True)
        picture(seed=i).save(tmp_path / "train" / f"n{i:08d}" / "0.png")
    (tmp_path / "val" / "n00000007").mkdir(parents=True)
    picture(seed=1007).save(tmp_path / "val" / "n00000007" / "0.png")
    images = {"train": str(tmp_path / "train"), "test": str(tmp_path / "val")}
    named = []
    for given in ({}, {"views": "cached", "lr": 0.1}):
        found = evaluate(trained, "linear", epochs=1, **images, **given)
        named.append((found["settings"]["views"], found["settings"]["lr"], capsys.readouterr().out))
    assert [(views, rate) for views, rate, _ in named] == [("augmented", 10.0), ("cached", 0.1)]
    assert (
        "new crops in each epoch, as in the paper for ImageNet (--views cached: features computed once)" in named[0][2]
    )
    assert "features computed once (--views augmented: new crops in each epoch, as in the paper)" in named[1][2]
    monkeypatch.setattr(type(trained), "own", True, raising=False)  # there are no crops for a view of the user's own
    assert evaluate(trained, "linear", epochs=1, quiet=True, lr=0.1, **images)["settings"]["views"] == "cached"


def test_the_papers_classifier_starts_at_random_weights_and_the_other_at_zero(trained, others, monkeypatch):
    """Weights from N(0, 0.01²) and a bias of zero; from there the steps are those of torch's SGD."""
    first = Regression.random(200, 500, seed=3)
    assert first.weight.shape == (1, 200, 500)
    assert float(first.weight.std()) == pytest.approx(0.01, rel=0.02)
    assert abs(float(first.weight.mean())) < 2e-4
    assert not any(value.any() for value in (first.bias, first.weight_velocity, first.bias_velocity))
    assert torch.equal(first.weight, Regression.random(200, 500, seed=3).weight)
    assert not torch.equal(first.weight, Regression.random(200, 500, seed=4).weight)
    step, seen = Regression.step, []

    def note(self, x, codes, rates):
        seen.append((self, self.weight.clone(), x.clone(), codes.clone()))
        step(self, x, codes, rates)

    monkeypatch.setattr(Regression, "step", note)
    for views in ("augmented", "cached"):
        seen.clear()
        evaluate(trained, "linear", test=str(others), quiet=True, views=views, epochs=1, lr=0.5, batch_size=16, seed=3)
        (fitted, weight, x, _) = seen[0]
        layer = nn.Linear(x.shape[1], 3)
        with torch.no_grad():
            expected = Regression.random(3, x.shape[1], seed=3).weight if views == "augmented" else torch.zeros(1)
            layer.weight.copy_(expected[0])
            layer.bias.zero_()
        torch.testing.assert_close(weight[0], layer.weight.data)
        optimizer = torch.optim.SGD(layer.parameters(), 0.5, momentum=0.9)
        for _, _, x, codes in seen:
            optimizer.zero_grad()
            F.cross_entropy(layer(x), codes).backward()
            optimizer.step()
        torch.testing.assert_close(fitted.weight[0], layer.weight.data, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(fitted.bias[0], layer.bias.data, atol=1e-5, rtol=1e-4)


def test_crops_of_the_linear_classifier_follow_the_seed(trained, others, monkeypatch):
    seeds = []
    fit = linear._fit_augmented
    monkeypatch.setattr(
        linear,
        "_fit_augmented",
        lambda task, encode, loader, *rest: seeds.append(loader.seed) or fit(task, encode, loader, *rest),
    )
    for seed in (3, 4):
        evaluate(trained, "linear", test=str(others), quiet=True, views="augmented", epochs=1, lr=0.1, seed=seed)
    assert seeds == [3, 4]


def test_every_epoch_uses_all_labelled_images(trained, photos):
    loader = trained.loader(str(photos))
    for size, sizes in ((48, [48]), (32, [24, 24]), (15, [12, 12, 12, 12]), (47, [24, 24]), (300, [48])):
        batches = list(loader.samples(torch.arange(48), 0, size, every=True))
        assert [len(b.index) for b in batches] == sizes
        assert torch.cat([b.index for b in batches]).tolist() == list(range(48))


@pytest.mark.parametrize(
    ("height", "width", "cells", "window"), [(7, 7, 2, (6, 6)), (7, 7, 3, (5, 5)), (3, 5, 2, (2, 4))]
)
def test_cells_are_windows_at_stride_one(height, width, cells, window):
    """By a loop; of the 7 x 7 map of a ResNet-50 windows of 6 x 6, so 8192 numbers for each image."""
    maps = torch.randn(2, 2048 if height == width else 5, height, width, generator=torch.Generator().manual_seed(0))
    backbone = SimpleNamespace(forward_features=lambda _: maps)
    found = linear.pooled_features(SimpleNamespace(backbone=backbone, feature_dim=maps.shape[1]), maps, cells)
    assert found.shape == (2, cells**2 * maps.shape[1])
    parts = found.view(2, maps.shape[1], cells, cells)
    for top in range(cells):
        for left in range(cells):
            seen = maps[:, :, top : top + window[0], left : left + window[1]]
            assert seen.shape[2:] == window
            torch.testing.assert_close(parts[:, :, top, left], seen.mean(dim=(2, 3)))


def test_more_cells_than_the_feature_map_has_are_refused(trained, others):
    with pytest.raises(UserError, match=r"--cells 9: the feature map has only (\d) x \1 cells; use --cells \1$"):
        evaluate(trained, "linear", test=str(others), quiet=True, views="augmented", epochs=1, cells=9)


def test_cells_of_the_feature_map(trained, others):
    """One cell is the pooled feature; the mean of four cells is it again."""
    loader = trained.loader(open_source(str(others)))
    (samples,) = loader.plain(30)
    views, encoder = loader.views.plain(samples), trained.encoders[0]
    with torch.no_grad():
        one, four = (linear.pooled_features(encoder, views, cells) for cells in (1, 2))
    assert four.shape == (30, 4 * one.shape[1])
    torch.testing.assert_close(four.view(30, -1, 4).mean(dim=2), one, atol=1e-5, rtol=1e-4)
    evaluate(trained, "linear", test=str(others), quiet=True, views="augmented", epochs=1, cells=2)
    with pytest.raises(UserError, match="--cells 2 needs --views augmented"):
        evaluate(trained, "linear", test=str(others), quiet=True, cells=2)
