"""Data sets of torchvision by their names."""

import functools
import inspect
import pickle
import shutil
import socket
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

import protonce
from conftest import SMALL, picture
from protonce.cli import main
from protonce.data import named
from protonce.data.sources import open_source
from protonce.errors import UserError
from protonce.evaluate.protocols import evaluate


def idx(path, array):
    """A file of MNIST's format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


@pytest.fixture
def fashion(tmp_path):
    """Twelve training and six test images, laid out as torchvision has Fashion-MNIST."""
    rng = np.random.default_rng(0)
    for part, n in (("train", 12), ("t10k", 6)):
        idx(tmp_path / f"FashionMNIST/raw/{part}-images-idx3-ubyte", rng.integers(0, 255, (n, 28, 28), dtype=np.uint8))
        idx(tmp_path / f"FashionMNIST/raw/{part}-labels-idx1-ubyte", (np.arange(n) % 3).astype(np.uint8))
    return tmp_path


def test_a_torchvision_data_set_by_its_name(fashion):
    spec = f"FashionMNIST:{fashion}"
    train, test = open_source(spec), open_source(spec, "test")
    assert (len(train), len(test), train.side) == (12, 6, 28)
    assert train.labels[:3] == ["T-shirt/top", "Trouser", "Pullover"]
    assert len(open_source(f"FashionMNIST@test:{fashion}")) == 6
    assert train.fingerprint != test.fingerprint
    raw = (fashion / "FashionMNIST/raw/train-images-idx3-ubyte").read_bytes()[16:]
    assert np.array_equal(train.load(11)[..., 1], np.frombuffer(raw, np.uint8).reshape(12, 28, 28)[11])
    assert np.array_equal(pickle.loads(pickle.dumps(train.load))(3), train.load(3))
    assert len(open_source(spec, limit=5)) == 5


def test_a_torchvision_data_set_skips_broken_files(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "slope1" / "99.png").write_bytes(b"broken")
    source, folder = open_source(f"ImageFolder:{tmp_path / 'photos'}"), open_source(tmp_path / "photos")
    assert (source.names, source.labels) == (folder.names, folder.labels)
    assert source.skipped == folder.skipped != []
    assert source.fingerprint == folder.fingerprint


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("NoSuchSet:ROOT", "torchvision has no data set 'NoSuchSet'"),
        (
            "FashionMNIST:ROOT/nowhere",
            r"FashionMNIST cannot be opened in .*nowhere: .* \(protonce does not download data\)",
        ),
        ("STL10@sideways:ROOT", "STL10 cannot be opened"),
        ("FashionMNIST@tset:ROOT", "FashionMNIST has no split 'tset'; available splits: train, test"),
        ("ImageFolder@test:ROOT", "ImageFolder has no splits; remove @test"),
        ("FakeData:ROOT", "torchvision's FakeData has no images in a folder"),
        ("FakeData@train:100", "torchvision's FakeData has no images in a folder"),
        ("CocoDetection:ROOT", "CocoDetection cannot be opened in .*: .*annFile"),
    ],
)
def test_missing_torchvision_data_sets(fashion, spec, words):
    with pytest.raises(UserError, match=words):
        open_source(spec.replace("ROOT", str(fashion)))


KINDS = [
    name
    for name, kind in vars(torchvision.datasets).items()
    if inspect.isclass(kind) and issubclass(kind, torchvision.datasets.VisionDataset)
]


@pytest.mark.parametrize("name", KINDS)
def test_no_torchvision_data_set_is_downloaded(tmp_path, monkeypatch, name):
    """Each ends in one sentence, without a connection."""

    def connect(*_):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket, "getaddrinfo", connect)
    for spec in (f"{name}:{tmp_path}", f"{name}@test:{tmp_path}"):
        with pytest.raises(UserError) as error:
            open_source(spec)
        assert "\n" not in str(error.value)
        assert "a connection" not in str(error.value)


def test_a_torchvision_data_set_does_not_depend_on_its_root(fashion):
    before = open_source(f"FashionMNIST:{fashion}")
    (fashion / "FashionMNIST").rename(fashion / "moved")
    (fashion / "other").mkdir()
    (fashion / "moved").rename(fashion / "other" / "FashionMNIST")
    for spec in (f"FashionMNIST:{fashion}/other", f"FashionMNIST@train:{fashion}/other"):
        assert open_source(spec).fingerprint == before.fingerprint
        assert open_source(spec, "train").identity == before.identity
    assert open_source(f"FashionMNIST:{fashion}/other", "test").fingerprint != before.fingerprint


def test_a_torchvision_data_set_with_private_samples_has_labels(tmp_path):
    for c in range(2):
        folder = tmp_path / "gtsrb" / "GTSRB" / "Training" / f"{c:05d}"
        folder.mkdir(parents=True)
        for i in range(3):
            picture(seed=10 * c + i).save(folder / f"{i}.ppm")
    source = open_source(f"GTSRB:{tmp_path}")
    assert source.labels == ["0"] * 3 + ["1"] * 3
    assert source.names[5].endswith("00001/2.ppm")


def test_a_data_set_without_splits_is_split_at_random(photos, tmp_path):
    """Every image of ImageFolder is a training image; with a limit, too, none of those is tested on."""
    settings = {**SMALL, "limit": 30, "epochs": 1, "warmup_epochs": 0}
    run = protonce.train(f"ImageFolder:{photos}", tmp_path / "run", quiet=True, **settings)
    for options, n in (({}, 30), ({"train": Path(f"ImageFolder:{photos}")}, 48)):
        result = evaluate(run, "knn", quiet=True, **options)
        assert result["data"]["split"].startswith("test images are a random fifth")
        assert result["data"]["train"]["images"] + result["data"]["test"]["images"] == n


class _Pets(torchvision.datasets.VisionDataset):
    """A data set of torchvision that calls its part trainval, and has its images, not their paths, as samples."""

    classes = ("cat", "dog")

    def __init__(self, root, split="trainval", target=int):
        super().__init__(root)
        if split != "trainval":
            raise ValueError(f"no {split}")
        self._samples = [(torch.zeros(3), target(i % 2)) for i in range(6)]

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return picture(seed=i), i % 2


def test_unusual_torchvision_data_sets(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.datasets, "Pets", _Pets, raising=False)
    source = open_source(f"Pets:{tmp_path}")
    assert (source.labels, source.files) == (["cat", "dog"] * 3, None)
    assert np.array_equal(source.load(3), np.asarray(picture(seed=3)))
    boxes = functools.partial(_Pets, target=lambda i: {"box": i})
    assert named.dataset_labels(boxes(tmp_path)) is None

    class Vectors(_Pets):
        def __getitem__(self, i):
            return torch.zeros(3), 0

    monkeypatch.setattr(torchvision.datasets, "Vectors", Vectors, raising=False)
    with pytest.raises(UserError, match="torchvision's Vectors is not a data set of single images"):
        open_source(f"Vectors:{tmp_path}")

    class Missing(_Pets):
        def __init__(self, root, split="train"):
            raise ImportError("no module lmdb")

    monkeypatch.setattr(torchvision.datasets, "Missing", Missing, raising=False)
    with pytest.raises(UserError, match=r"Missing cannot be opened in .*: no module lmdb"):
        open_source(f"Missing:{tmp_path}")


def test_a_run_on_a_named_data_set_is_tested_on_its_test_split(fashion, tmp_path, capsys):
    spec = f"FashionMNIST:{fashion}"
    settings = {**SMALL, "clusters": [3], "batch_size": 4}
    run = protonce.train(spec, tmp_path / "run", epochs=1, quiet=True, **settings)
    assert run.config["data"]["source"] == spec
    assert len(run.source()) == 12
    assert main(["evaluate", str(run.path), "knn"]) == 0
    assert "the data set's own test split" in capsys.readouterr().out
