"""The study of benchmarks/adapt.py: its scores, its criterion, and equal trials for every system."""

import json

import numpy as np
import pytest
import torch

import protonce
from benchmarks import adapt
from benchmarks.adapt_cache import cut
from benchmarks.adapt_data import Pictures, cut_out
from conftest import make_system
from protonce.adaptation import stages
from protonce.data.object_sources import open_objects
from protonce.data.sources import open_source
from protonce.encoder import build
from test_detection import voc
from test_encoder import settings


def test_every_system_has_as_many_trials():
    assert {len(adapt.trials(system)) for system in adapt.METHODS} == {10}
    for system in adapt.METHODS:
        names = {str(changes) for changes in adapt.trials(system)}
        assert len(names) == 10, "and no two are alike"


def labelled(labels):
    return open_source(Pictures([np.full((4, 4, 3), i, dtype=np.uint8) for i in range(len(labels))], labels))


def test_accuracy_is_balanced():
    known = torch.eye(2).repeat(20, 1)
    asked = torch.eye(2)[[0, 0, 0, 0, 1, 0]]  # of the rare class, one of two is right
    found = adapt.score(known, asked, labelled(["a", "b"] * 20), labelled([*"aaaabb"]))
    assert found["right"] == "111110"
    assert found["knn"] == pytest.approx((1 + 1 / 2) / 2)


def test_the_criterion_is_the_mean_gain_over_sets_and_seeds():
    frozen = {(data, 100): {"scores": {"96": {"knn": 0.5, "ami": 0.2}}} for data in ("x", "y")}
    results = [
        {"data": data, "seed": 100, "scores": {"query": {"knn": knn, "ami": 0.3}, "twin": {"knn": 0.1, "ami": 0.1}}}
        for data, knn in (("x", 0.6), ("y", 0.5))
    ]
    assert adapt.gain(results, frozen, "query") == pytest.approx((0.1 + 0.1 + 0.0 + 0.1) / 4)
    assert adapt.gain(results, frozen, "twin") == pytest.approx(-0.25)


def test_what_is_chosen(tmp_path, monkeypatch):
    """Of the two trials that are best on the first seed the one that is better on both, with its better encoder."""
    values = {"{}": {100: 0.3, 101: 0.0}, "{'lr': 0.02}": {100: 0.2, 101: 0.2}}

    def run_all(cells, folder, jobs):
        return [
            {
                "data": cell.data,
                "seed": cell.seed,
                "scores": {
                    "96": {"knn": 0.0, "ami": 0.0},
                    "query": {"knn": values.get(str(cell.changes), {}).get(cell.seed, -1.0), "ami": 0.0},
                    "twin": {"knn": -2.0, "ami": 0.0},
                },
            }
            for cell in cells
        ]

    monkeypatch.setattr(adapt, "run_all", run_all)
    found = adapt.choose({"x": "x", "y": "y"}, "weights", tmp_path, 1)
    assert found.keys() == adapt.METHODS.keys()
    assert found["pcl"] == {"changes": {"lr": 0.02}, "encoder": "query", "gain": pytest.approx(0.1)}


def test_the_control_keeps_its_first_prototypes():
    system = make_system(adapt.FixedPrototypes, warmup_epochs=0)
    draw = torch.Generator().manual_seed(0)
    first, second = (torch.nn.functional.normalize(torch.randn(48, 16, generator=draw), dim=1) for _ in range(2))
    found = system.e_step(0, lambda: first)
    assert system.e_step(1, lambda: second) is found


def test_objects_are_cut_out_by_their_boxes(tmp_path, monkeypatch):
    objects = open_objects(voc(tmp_path), "train")
    assert len(cut_out(objects)) == 0, "24 pixels are too few"
    monkeypatch.setattr("benchmarks.adapt_data.SMALLEST", 24)
    objects.objects[2].difficult[:] = True
    found = cut_out(objects)
    assert found.labels == ["red", "blue <b>", "blue <b>"]
    for picture, channel in zip(found.images, (0, 2, 2), strict=True):
        assert picture.shape == (24, 24, 3)
        assert picture[..., channel].mean() > 200


@pytest.mark.parametrize("backbone", ["resnet10t", "tf_efficientnet_lite0"])
def test_frozen_stages_and_the_others_are_the_backbone(backbone):
    torch.manual_seed(0)
    encoder = build(settings(backbone=backbone, width=4)).eval()
    x = torch.randn(3, 3, 32, 32)
    for trained_stages in (1, 2, 4):
        head, tail = cut(encoder.backbone, trained_stages, x)
        kept = {name for names in stages(encoder.backbone)[-trained_stages:] for name in names}
        assert {name for name, _ in tail.named_parameters()} == kept
        torch.testing.assert_close(tail.eval()(head(x)), encoder.features(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", ["pcl", "byol"])
def test_training_on_activations_is_training_on_images(method, trained, tmp_path, photos, monkeypatch):
    monkeypatch.setattr(
        adapt, "ENCODER", {"backbone": "resnet10t", "width": 4, "dim": 16, "epochs": 2, "batch_size": 16}
    )
    monkeypatch.setattr(adapt, "SIDE", 16)
    made = []
    plain = protonce.train
    monkeypatch.setattr(
        protonce, "train", lambda data, out, **given: made.append(plain(data, out, **given)) or made[-1]
    )
    monkeypatch.setitem(adapt.READ_ONCE, "photos", lambda root, seed: (open_source(root), open_source(root)))
    cell = adapt.Cell("photos", str(photos), str(trained.path), method, {"lr": 0.05}, 0)
    adapt.run_group([cell], tmp_path)  # in this process
    found = json.loads((tmp_path / f"{cell.name}.json").read_text())
    monkeypatch.setattr(adapt, "_views", lambda *_: adapt.ON_IMAGES)
    adapt.run_group([cell], tmp_path)
    expected = json.loads((tmp_path / f"{cell.name}.json").read_text())
    on_activations, on_images = ([*run.encoders] for run in made)
    for ours, theirs in zip(on_activations, on_images, strict=True):
        state = theirs.state_dict()
        for name, value in ours.state_dict().items():
            torch.testing.assert_close(value, state[name], atol=1e-4, rtol=1e-3, msg=name)
    assert found["scores"]["query"]["ami"] == pytest.approx(expected["scores"]["query"]["ami"], abs=0.05)
    assert found.keys() == expected.keys()
