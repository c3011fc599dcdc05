"""`protonce.train`: what decides a run, what is refused, and data, views and encoders of the user's own."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn

import protonce
from conftest import SMALL
from protonce.errors import UserError


def test_labels_never_reach_training(photos, tmp_path):
    """The same images without class folders give the same encoder."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in sorted(photos.rglob("*.png")):
        shutil.copy(file, flat / f"{file.parent.name}-{file.name}")
    a = protonce.train(photos, tmp_path / "a", epochs=1, quiet=True, **SMALL)
    b = protonce.train(flat, tmp_path / "b", epochs=1, quiet=True, **SMALL)
    assert (a.path / "encoder.safetensors").read_bytes() == (b.path / "encoder.safetensors").read_bytes()


def test_the_seed_decides_and_the_callers_generator_does_not(photos, tmp_path):
    torch.manual_seed(7)
    state = torch.get_rng_state()
    a = protonce.train(photos, tmp_path / "a", epochs=1, quiet=True, **SMALL)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    b = protonce.train(photos, tmp_path / "b", epochs=1, quiet=True, **SMALL)
    c = protonce.train(photos, tmp_path / "c", epochs=1, quiet=True, seed=1, **SMALL)
    first, second, third = ((r.path / "encoder.safetensors").read_bytes() for r in (a, b, c))
    assert first == second
    assert first != third


def test_too_few_images_and_nothing_written(tmp_path):
    images = np.zeros((5, 16, 16), dtype=np.uint8)
    with pytest.raises(UserError, match="5 readable images; training needs at least 8"):
        protonce.train(images, tmp_path / "r", quiet=True)
    with pytest.raises(UserError, match="pass views="):
        protonce.train(_Rows(), tmp_path / "r", quiet=True)
    assert not (tmp_path / "r").exists()


class _Rows:
    """Vectors of two groups: another modality."""

    def __len__(self):
        return 40

    def load(self, i):
        return torch.full((6,), float(i % 2)) + torch.arange(6) * 0.01 * i


class _Noise:
    def train(self, samples):
        u = [torch.from_numpy(samples.uniform(which, 6)).float() for which in ("query", "key")]
        return samples.data + u[0], samples.data + u[1]

    def plain(self, samples):
        return samples.data


def test_own_data_views_and_encoder(tmp_path):
    def network():
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU())

    torch.manual_seed(0)
    settings = {"clusters": [2], "dim": 4, "epochs": 2, "batch_size": 8, "recipe": "small-v2", "device": "cpu"}
    run = protonce.train(_Rows(), tmp_path / "r", encoder=network(), views=_Noise(), quiet=True, **settings)
    embedding = run.embed(_Rows())
    assert embedding.features.shape == (40, 8)
    again = protonce.load(run.path, encoder=network(), views=_Noise())
    np.testing.assert_allclose(again.embed(_Rows()).features, embedding.features)
    with pytest.raises(UserError, match="pass it as encoder="):
        protonce.load(run.path, views=_Noise()).embed(_Rows())
    with pytest.raises(UserError, match="pass them as views="):
        protonce.load(run.path, encoder=network()).embed(_Rows())
    with pytest.raises(UserError, match="was started with encoder="):
        protonce.train(_Rows(), run.path, views=_Noise(), resume=True, quiet=True)
    with pytest.raises(UserError, match="need an encoder of your own"):
        protonce.train(_Rows(), tmp_path / "other", views=_Noise(), quiet=True, **settings)
    assert not (tmp_path / "other").exists()


def test_a_run_is_shown_with_its_folder(trained):
    assert repr(trained) == f"Run({str(trained.path)!r})"


def test_a_run_has_a_method_for_each_command(quick_page, trained, photos, others, tmp_path):
    """Each gives what the modules give; labels may be a mapping."""
    names, labels = trained.images
    assert isinstance(trained, protonce.Run)
    assert trained.evaluate("knn", test=others)["protocol"] == "knn"
    first = trained.suggest(6)
    assert len({*first}) == 6
    truth = dict(zip(names, labels, strict=True))
    known = {name: truth[name] for name in first}
    assert not {*known} & {*trained.suggest(6, known)}
    found = trained.label(known, min_confidence=0.0)
    assert len(found.label) == 48
    assert [found.label[names.index(name)] for name in first] == [*known.values()]
    photo = photos / names[5]
    (best, *_) = trained.search([photo], top=3, labels=known)
    assert best.file == str(photo)
    sorted_ = trained.sort(photos, tmp_path / "sorted", labels=known)
    assert sorted_.names == names
    assert sum(map(len, trained.tidy().groups)) <= 48
    assert trained.report() == trained.path / "report.html"
    for wrong, said in (
        ({"no.png": "x"}, "which is not an image"),
        ({names[0]: " "}, "no label for"),
        ({}, "add some"),
    ):
        with pytest.raises(UserError, match=said):
            trained.label(wrong)
