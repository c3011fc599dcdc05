"""What every registered system must bear: resuming, two processes, images without labels, weights to start from.

Three systems are tested by `make test`, all by `.ci/run`.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import protonce
from conftest import SMALL, train_until
from processes import run_on_ranks
from protonce.config import Settings, read_recipe, recipes
from protonce.encoder import build
from protonce.methods.registry import SYSTEMS, find, part
from protonce.report.page import write_report

pytestmark = pytest.mark.usefixtures("few_compared")
QUICK = ("deepcluster", "localagg", "swav")  # labels of an E-step, a bank with warm-up, views of several sizes
# Batches of 15 do not divide the 48 photos. Tiles need views of 24 pixels.
SETTINGS = {**SMALL, "image_size": 24, "batch_size": 15, "epochs": 3, "quiet": True}
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SYSTEMS]
UNTRAINED = "random"


@pytest.fixture(scope="module")
def without_labels(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flat")
    for i, path in enumerate(sorted(photos.rglob("*.png"))):
        shutil.copy(path, folder / f"{i}.png")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_equals_an_uninterrupted_one(photos, tmp_path, monkeypatch, name):
    options = {**SETTINGS, "method": name}
    whole = protonce.train(photos, tmp_path / "whole", **options)
    assert all(np.isfinite(record["loss"]) for record in whole.metrics)
    assert {term for record in whole.metrics for term in whole.terms if term in record} == {*whole.terms}
    assert whole.title == SYSTEMS[name].title
    stop = (1, None) if name == UNTRAINED else (1, 2)  # it has one epoch, which changes nothing
    train_until(stop, monkeypatch, photos, tmp_path / "stopped", options)
    stopped = protonce.train(photos, tmp_path / "stopped", resume=True, **options)
    for file in ("encoder.safetensors", "prototypes.npz"):
        assert (whole.path / file).read_bytes() == (stopped.path / file).read_bytes(), file
    untrained = build(whole.settings).state_dict()
    weights = {k: v for k, v in whole.encoders[0].state_dict().items() if k.endswith("conv1.weight")}
    moved = [k for k, v in weights.items() if not torch.equal(v, untrained[k])]
    assert bool(moved) == (name != UNTRAINED)
    assert whole.health.words
    assert SYSTEMS[name].title in write_report(whole, quiet=True).read_text()


@pytest.mark.parametrize("name", NAMES)
def test_images_without_labels_and_weights_to_start_from(photos, without_labels, tmp_path, name):
    images = photos if find(name).system.needs_labels else without_labels
    first = protonce.train(images, tmp_path / "first", **{**SETTINGS, "epochs": 1, "method": name})
    again = protonce.train(
        images, tmp_path / "again", init=str(first.path), **{**SETTINGS, "epochs": 1, "method": name, "lr": 1e-12}
    )
    ours, theirs = (run.encoders[0].state_dict() for run in (first, again))
    for key in (key for key in ours if key.startswith("backbone") and key.endswith("weight")):
        torch.testing.assert_close(theirs[key], ours[key], atol=1e-5, rtol=0, msg=f"{key} did not start from the run")


@pytest.fixture(scope="module")
def two_ranks(photos, tmp_path_factory):
    """Train systems on two ranks, in one launch."""
    from two_registered import train_all

    def train(names):
        out = tmp_path_factory.mktemp("two")
        run_on_ranks(train_all, photos, out, names)
        return out

    return train


def compare_ranks(photos, tmp_path, out, name):
    from two_registered import train

    one, two = train(photos, tmp_path, name), protonce.load(out / name)
    for ours, theirs in zip(one.metrics, two.metrics, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-5), name
    ours, theirs = (load_file(run.path / "encoder.safetensors") for run in (one, two))
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-2)


def test_two_processes_train_what_one_trains(photos, tmp_path, two_ranks):
    out = two_ranks(QUICK)
    for name in QUICK:
        compare_ranks(photos, tmp_path, out, name)


@pytest.mark.slow
def test_two_processes_train_what_one_trains_for_all_systems(photos, tmp_path, two_ranks):
    others = [name for name in SYSTEMS if name not in QUICK]
    out = two_ranks(others)
    for name in others:
        compare_ranks(photos, tmp_path, out, name)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_its_published_recipe(name):
    """Settings and options are valid, and each is followed by its source."""
    recipe = {"moco": "moco-v2", "pcl": "pcl-v2"}.get(name, name)
    if recipe not in recipes():
        assert name in ("pcl+byol", "pcl+simclr"), "systems without a published run"
        return
    values = read_recipe(recipe)
    assert values.get("method", Settings().method) == name
    common, options = part(values, find(name), recipe)
    Settings(**common)
    find(name).options(**options)
    text = (Path(protonce.__file__).parent / "recipes" / f"{recipe}.yaml").read_text()
    for line in text.splitlines():
        assert not line or line.startswith("method: ") or "#" in line, f"{recipe}: {line} has no source"
