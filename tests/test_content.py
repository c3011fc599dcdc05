"""What the page shows of a run, whatever it has or lacks."""

import json

import numpy as np
import pytest
import torch

import protonce
from conftest import SMALL
from pages import Text, make
from protonce import manifest
from protonce.errors import UserError
from protonce.report.folders import write_folders
from protonce.report.hierarchy import NO_LABEL
from protonce.report.page import write_report
from protonce.run import Run, read_assignments

pytestmark = pytest.mark.usefixtures("quick_page")


def test_a_run_of_60_images_without_labels_and_with_one_granularity(tmp_path):
    settings = {**SMALL, "clusters": [5]}
    run = protonce.train(make(tmp_path / "photos", 60), tmp_path / "run", epochs=1, quiet=True, **settings)
    page = Text(write_report(run, quiet=True))
    assert "no labels" in page.text
    assert "No evaluations yet" in page.text
    assert page.data["labels"] is None
    assert page.data["levels"][0]["purity"] is None
    assert page.data["levels"][0]["parent"] is None
    assert len(page.data["map"]["images"]) == 60


def test_a_run_with_one_labelled_image(trained):
    path = trained.path
    header, first, *others = (path / "images.csv").read_text().splitlines()
    others = [line.rpartition(",")[0] + "," for line in others]
    manifest.write(path, "images.csv", "\n".join([header, first, *others]) + "\n")
    page = Text(write_report(Run(path), quiet=True))
    label = first.rpartition(",")[2]
    assert "1 of them labelled, 1 classes" in page.text
    assert page.data["classes"] == [label, NO_LABEL]
    assert page.data["labels"] == [0] + [1] * 47
    level = page.data["levels"][0]
    own = level["assignment"][0]
    assert [p for c, p in enumerate(level["purity"]) if c != own] == [None] * (len(level["size"]) - 1)
    assert (level["purity"][own], level["label"][own]) == (1.0, 0)
    assert level["labelled"] == [int(c == own) for c in range(len(level["size"]))]


def test_a_run_that_was_interrupted_after_an_epoch(trained):
    path = trained.path
    written_later = (
        "encoder.safetensors",
        "encoder.json",
        "prototypes.npz",
        "assignments/0003.npz",
        "assignments/0002.npz",
    )
    manifest.write(path, "metrics.jsonl", json.dumps(trained.metrics[0]) + "\n{")
    manifest.remove(path, *written_later)
    page = Text(write_report(Run(path), quiet=True))
    assert "1 of 3: the run is not finished" in page.text
    assert "4 / 8, coarse to fine, of the beginning of epoch 1" in page.text
    assert "There is no map: the run is not finished" in page.text
    assert page.data["levels"][0]["assignment"] == read_assignments(path, 1)[0].tolist()
    assert page.data["levels"][1]["phi"] is None
    assert len(page.data["pictured"]) == 48
    assert page.data["outliers"] is None
    assert page.data["suggested"] == []
    manifest.write(path, "metrics.jsonl", "")
    with pytest.raises(UserError, match="has no finished epoch yet"):
        write_report(Run(path), quiet=True)


def test_missing_or_moved_images(tmp_path):
    photos = make(tmp_path / "photos", 48, classes=3)
    run = protonce.train(photos, tmp_path / "run", epochs=1, quiet=True, **SMALL)
    photos.rename(tmp_path / "moved")
    page = Text(write_report(run, quiet=True))
    assert "are not available" in page.text
    assert page.data["pictured"] == []
    assert len(page.data["levels"]) == 2
    page = Text(write_report(run, data=tmp_path / "moved", quiet=True))
    assert len(page.data["pictured"]) == 48
    with pytest.raises(UserError, match=r"the 24 images of .* are not the 48 images that"):
        write_report(run, data=make(tmp_path / "others", 24), quiet=True)


def test_more_images_than_the_page_lists(trained, monkeypatch):
    monkeypatch.setattr("protonce.report.payload.LISTED", 30)
    monkeypatch.setattr("protonce.report.thumbnails.MAX_THUMBNAILS", 20)
    monkeypatch.setattr("protonce.report.scatter.POINTS", 10)
    monkeypatch.setattr("protonce.report.content.ODD", 0)
    monkeypatch.setattr("protonce.report.content.SUGGESTED", 3)
    page = Text(write_report(trained, quiet=True))
    assert "Thumbnails of 20 of 48 images" in page.text
    assert "The map shows 10 of 48 images" in page.text
    assert 20 <= len(page.data["names"]) <= 30
    names = trained.images[0]
    for found, c in zip(page.data["levels"], trained.prototypes, strict=True):
        assert sum(found["size"]) == 48  # of all, not of the listed
        for name, which in zip(page.data["names"], found["assignment"], strict=True):
            assert which == c.assignment[names.index(name)]
    assert len({page.data["names"][i] for i in page.data["pictured"]}) == 20
    assert len(page.data["suggested"]) == 3
    assert {*page.data["suggested"]} <= {*page.data["pictured"]}


def test_vectors_have_a_map_but_no_thumbnails(tmp_path):
    class Items:
        labels = tuple(str(i % 2) for i in range(40))

        def __len__(self):
            return 40

        def load(self, i):
            return torch.full((6,), float(i % 2)) + torch.arange(6) * 0.01 * i

    class Noise:
        def train(self, samples):
            u = [torch.from_numpy(samples.uniform(which, 6)).float() for which in ("query", "key")]
            return samples.data + u[0], samples.data + u[1]

        def plain(self, samples):
            return samples.data

    settings = {"clusters": [2], "dim": 4, "epochs": 1, "batch_size": 8, "recipe": "small-v2", "device": "cpu"}
    run = protonce.train(
        Items(), tmp_path / "run", encoder=torch.nn.Linear(6, 8), views=Noise(), quiet=True, **settings
    )
    page = Text(write_report(run, data=Items(), quiet=True))
    assert page.data["pictured"] == []
    assert len(page.data["map"]["images"]) == 40
    assert "custom" in page.text
    assert "This run was trained from Python" in page.text
    page = Text(write_report(Run(run.path), quiet=True))  # as the command line sees it
    assert "Parts of this page are missing" in page.text
    with pytest.raises(UserError, match="are not images"):
        write_folders(run, tmp_path / "folders", data=Items(), quiet=True)


def test_without_the_encoder_thumbnails_remain(photos, tmp_path):
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Linear(3, 8)

        def forward(self, x):
            return self.scale(x.mean(dim=(2, 3)))

    run = protonce.train(photos, tmp_path / "run", encoder=Mean(), epochs=1, quiet=True, **SMALL)
    page = Text(write_report(Run(run.path), quiet=True))
    assert "trained with a custom encoder" in page.text
    assert page.data["map"] is None
    assert len(page.data["pictured"]) == 48


def test_identical_images_have_no_map(tmp_path):
    images = np.full((40, 16, 16), 90, dtype=np.uint8)
    run = protonce.train(images, tmp_path / "run", epochs=1, quiet=True, **SMALL)
    page = Text(write_report(run, data=images, quiet=True))
    assert "There is no map: the encoder maps all images to the same features" in page.text
    assert page.data["alike"]["groups"] == [[list(range(40)), "exact copy", 1.0]]
    assert page.data["suggested"] == [0]
