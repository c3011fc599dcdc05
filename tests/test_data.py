"""Sources and loaders: folders, archives, arrays, the built-in set, and the odd files among them."""

import functools
import io
import os
import pickle
import shutil
import signal
import struct
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
import torchvision
from PIL import Image

import protonce
from conftest import SMALL
from protonce.auto import DataSize, Machine, resolve
from protonce.cli import main
from protonce.config import Settings
from protonce.data import builtin, listings, named, pictures, sources
from protonce.data import loader as loader_module
from protonce.data.loader import Loader
from protonce.data.sources import folder_labels, open_source, split
from protonce.data.views import ImageViews
from protonce.errors import UserError
from protonce.evaluate.protocols import evaluate
from protonce.files import csv_text


def image_views(size=16, **values):
    machine = Machine("cpu", bfloat16=False, faiss=False, cores=1)
    return ImageViews(resolve(Settings(image_size=size, **values), DataSize(100, 20), machine))


def zip_of(folder, path):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    return path


def picture(side=12, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def tar_of(folder, path):
    with tarfile.open(path, "w:" + path.suffix[1:].replace("tar", "").replace("tgz", "gz")) as archive:
        archive.add(folder, arcname=".")
    return path


def table_of(folder, path):
    """A table beside the folder; its rows in disorder."""
    names = sorted((p.relative_to(folder).as_posix() for p in folder.rglob("*.png")), reverse=True)
    columns = {"Label": [name.split("/")[0] for name in names], "File": names}
    for name in {name.split("/")[0] for name in names}:  # paths are relative to the table
        (path.parent / name).symlink_to(folder / name)
    if path.suffix == ".csv":
        path.write_text("\ufeff" + csv_text(list(columns), zip(*columns.values(), strict=True)), encoding="utf-8")
    else:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


PLACES = {
    "photos.zip": lambda folder, path: zip_of(folder, path),
    "photos.tar": tar_of,
    "photos.tar.gz": tar_of,
    "photos.tgz": tar_of,
    "photos.tar.xz": tar_of,
    "photos.csv": table_of,
    "photos.parquet": table_of,
}


@pytest.mark.parametrize("name", PLACES)
def test_all_containers_give_the_same_source(photos, tmp_path, name):
    folder, other = open_source(photos), open_source(PLACES[name](photos, tmp_path / name))
    assert len(folder) == len(other) == 48
    assert folder.names == other.names == sorted(folder.names)
    assert folder.labels == other.labels == [f"slope{i // 16}" for i in range(48)]
    assert folder.fingerprint == other.fingerprint
    assert folder.side == other.side == 20
    for i in (0, 17, 47):
        assert np.array_equal(folder.load(i), other.load(i))
    again = pickle.loads(pickle.dumps(other.load))  # as a worker gets it that is not forked
    assert np.array_equal(folder.load(5), again(5))


@pytest.fixture(scope="module")
def large_classes(tmp_path_factory):
    """A folder of pictures too large for the memory map, which workers read in each epoch; and a run on it."""
    folder = tmp_path_factory.mktemp("large")
    for i in range(24):
        (folder / f"class{i % 2}").mkdir(exist_ok=True)
        picture(side=140, seed=i).save(folder / f"class{i % 2}" / f"{i:02d}.png")
    return folder, _identical_run(folder, tmp_path_factory.mktemp("runs") / "folder")


def _identical_run(data, out):
    settings = {**SMALL, "clusters": [3], "batch_size": 8, "workers": 2, "epochs": 2, "warmup_epochs": 1}
    run = protonce.train(data, out, quiet=True, **settings)
    return [(run.path / name).read_bytes() for name in ("encoder.safetensors", "prototypes.npz", "images.csv")]


@pytest.mark.parametrize("name", ["photos.zip", "photos.tar", "photos.tgz", "photos.csv"])
def test_all_containers_give_the_identical_run(large_classes, tmp_path, name):
    folder, expected = large_classes
    assert _identical_run(PLACES[name](folder, tmp_path / name), tmp_path / "run") == expected


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
        ("CocoDetection:ROOT", "CocoDetection cannot be opened in .*: .*annFile"),
    ],
)
def test_missing_torchvision_data_sets(fashion, spec, words):
    with pytest.raises(UserError, match=words):
        open_source(spec.replace("ROOT", str(fashion)))


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


def test_links_to_folders_are_followed_except_in_cycles(photos, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(photos / "slope0", folder / "slope0")
    shutil.copytree(photos / "slope2", tmp_path / "elsewhere" / "slope2")
    (folder / "slope1").symlink_to(photos / "slope1")
    (folder / "slope2").symlink_to(tmp_path / "elsewhere" / "slope2")
    (folder / "slope0" / "up").symlink_to(folder)
    (tmp_path / "elsewhere" / "slope2" / "round").symlink_to(folder)  # two links that lead to each other
    found, expected = open_source(folder), open_source(photos)
    assert (found.names, found.labels) == (expected.names, expected.labels)
    assert found.fingerprint == expected.fingerprint


@pytest.mark.parametrize(("n", "sizes"), [(7, [3, 4]), (8, [4, 4]), (9, [3, 3, 3]), (3, [3]), (2, [2]), (1, [1])])
def test_every_image_is_in_a_batch_of_at_least_two(photos, n, sizes):
    """Batches of at most four here; in one of two images at most, none is left by itself."""
    loader = Loader(open_source(photos), image_views(), seed=0, workers=0)
    order = torch.arange(n)
    assert sorted(len(s.index) for s in loader.samples(order, 0, 4, every=True)) == sizes
    pairs = [len(s.index) for s in loader.samples(order, 0, 2, every=True)]
    assert sum(pairs) == n
    assert min(pairs) >= min(n, 2)
    assert max(pairs) <= 3


def test_identity_depends_on_content(tmp_path):
    """The fingerprint is of names and sizes, which the files of an uncompressed format may share."""

    def write(name, seed):
        (tmp_path / name).mkdir()
        for i in range(20):
            picture(seed=seed + i).save(tmp_path / name / f"{i:02d}.bmp")
        return tmp_path / name

    one, other = write("one", 0), write("other", 100)
    assert open_source(one).fingerprint == open_source(other).fingerprint
    assert open_source(one).identity != open_source(other).identity
    for make in (zip_of, tar_of):
        first, second = (open_source(make(f, tmp_path / f"{f.name}.{make.__name__[:3]}")) for f in (one, other))
        assert first.fingerprint == second.fingerprint
        assert first.identity != second.identity
    source = open_source(one)
    assert open_source(one).identity == source.identity
    assert source.subset(np.array([0, 1])).identity != source.subset(np.array([1, 0])).identity
    picture(seed=500).save(one / "07.bmp")
    assert open_source(one).fingerprint == source.fingerprint
    assert open_source(one).identity != source.identity

    class Own:
        def __init__(self, seed):
            self.names, self.seed = np.array([f"{i}.png" for i in range(40)]), seed

        def __len__(self):
            return 40

        def load(self, i):
            return np.asarray(picture(seed=self.seed + i))

    many = tmp_path / "many"
    many.mkdir()
    for i in range(40):
        picture(seed=i).save(many / f"{i:02d}.bmp")
    chosen = np.arange(39)
    before = open_source(many).subset(chosen)
    os.utime(many / "01.bmp", ns=(0, -(10**9)))  # before 1970, and none of those that are looked into
    assert open_source(many).subset(chosen).identity != before.identity

    assert open_source(Own(0)).names[:2] == ["0.png", "1.png"]
    assert open_source(Own(0)).identity == open_source(Own(0)).identity != open_source(Own(100)).identity


@pytest.mark.parametrize(
    "make",
    [
        lambda x: (torch.full((3,), x), torch.full((5,), x)),
        lambda x: {"a": torch.full((2,), x, dtype=torch.bfloat16), "b": [x, "words"]},
        lambda x: torch.full((2,), float(x), requires_grad=True),
        lambda x: f"text {x}",
        lambda x: slice(x),
        lambda x: 1 / x * np.ones(3),  # of which the first, in one of two sets, cannot be had
    ],
)
def test_items_of_any_kind_have_an_identity(make):
    class Own:
        def __init__(self, first):
            self.first = first

        def __len__(self):
            return 9

        def load(self, i):
            return make(self.first + i)

    same, other = (sources.Source("own", ["a"] * 9, None, Own(first).load, "f") for first in (0, 5))
    assert same.identity == sources.Source("own", ["a"] * 9, None, Own(0).load, "f").identity != other.identity


def test_a_file_listed_twice_through_links_is_on_one_side(photos, tmp_path):
    for name in ("a", "b"):
        (tmp_path / "linked" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "linked" / name).symlink_to(photos / "slope0")
    (tmp_path / "linked" / "loop.png").symlink_to(tmp_path / "linked" / "loop.png")
    source = open_source(tmp_path / "linked")
    assert (len(source), [s.name for s in source.skipped]) == (32, ["loop.png"])
    trained, tested = split(source, seed=0, share=0.4)
    assert len(trained) + len(tested) == 32
    assert tested.files
    assert not {*trained.files} & {*tested.files}


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


def test_a_webdataset_names_its_classes(tmp_path):
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        for i in range(4):
            buffer = io.BytesIO()
            picture(8, seed=i).save(buffer, format="PNG")
            for suffix, content in (("png", buffer.getvalue()), ("cls", f"{i % 2}\n".encode()), ("json", b"{}")):
                info = tarfile.TarInfo(f"sample{i}.{suffix}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    source = open_source(tmp_path / "shard.tar")
    assert source.names == [f"sample{i}.png" for i in range(4)]
    assert source.labels == ["0", "1", "0", "1"]
    assert np.array_equal(source.load(3), np.asarray(picture(8, seed=3)))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.tar", b"nothing", "cannot be read as a .tar"),
        ("a.tar.gz", b"nothing", "cannot be read as a .tar"),
        ("a.csv", b"", "a.csv is empty"),
        ("a.csv", b"colour,shape\nred,round\n", "has no column of image paths"),
        ("a.csv", b"path,label\na.png,1\nb.png\n", "row 3 of .* has 1 columns, but the first row has 2"),
        ("a.csv", b"path\n", "no images found in the table"),
        ("a.csv", b"path\ngone.png\n", "gone.png: No such file or directory"),
        ("a.parquet", b"nothing", "cannot be read as .parquet"),
    ],
)
def test_unusable_archives_and_tables(tmp_path, name, content, words):
    with pytest.raises(UserError, match=words):
        open_source(_write(tmp_path / name, content))


def test_a_table_may_list_missing_files_and_duplicates(photos, tmp_path):
    file = photos / "slope0" / "00.png"
    (tmp_path / "list.csv").write_text(f"image\n{file}\n{file}\n{photos / 'slope1' / '03.png'}\nnowhere.png\n")
    source = open_source(tmp_path / "list.csv")
    assert source.names == [str(file), str(photos / "slope1" / "03.png")]
    assert [s.name for s in source.skipped] == ["nowhere.png"]


def test_labels_are_the_folders_below_the_common_one():
    assert folder_labels(["a/1.png", "b/2.png"]) == ["a", "b"]
    assert folder_labels(["set/train/a/1.png", "set/train/b/x/2.png"]) == ["a", "b/x"]
    assert folder_labels(["1.png", "2.png"]) is None
    assert folder_labels(["photos/1.png", "photos/2.png"]) is None
    assert folder_labels(["a/1.png", "2.png"]) is None, "an image beside the folders has no class"


def test_unreadable_files_are_skipped_counted_and_named(tmp_path):
    picture().save(tmp_path / "good.png")
    picture(300).save(tmp_path / "large.jpg")
    whole = (tmp_path / "large.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("not a picture")
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "notes.txt").write_text("not an image suffix")
    (tmp_path / ".hidden.png").write_text("hidden")
    (tmp_path / "folder.png").mkdir()
    source = open_source(tmp_path)
    assert source.names == ["good.png", "large.jpg"]
    reasons = {s.name: s.reason for s in source.skipped}
    assert reasons.keys() == {"cut.jpg", "text.png", "empty.jpg"}
    assert "truncated" in reasons["cut.jpg"]
    assert "not a supported image format" in reasons["text.png"]


def test_every_mode_becomes_rgb_and_upright(tmp_path):
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 4)
    grey.save(tmp_path / "grey.png")
    picture(8).convert("P").save(tmp_path / "palette.gif")
    picture(8).convert("RGBA").save(tmp_path / "alpha.png")
    picture(8).convert("CMYK").save(tmp_path / "cmyk.jpg")
    tall = Image.fromarray(np.zeros((8, 4, 3), dtype=np.uint8))
    deep = Image.fromarray((np.arange(64).reshape(8, 8) * 60).astype(np.uint16))  # 12 bits in 16
    deep.save(tmp_path / "deep.png")
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(tmp_path / "float.tiff")
    exif = tall.getexif()
    exif[0x0112] = 6  # turned by a quarter
    tall.save(tmp_path / "turned.jpg", exif=exif)
    source = open_source(tmp_path)
    assert len(source) == 7
    for name in ("deep.png", "float.tiff"):
        grey = source.load(source.names.index(name))[..., 0]
        assert (grey.min(), grey.max()) == (0, 255)
        assert np.array_equal(np.sort(grey, axis=None), grey.ravel()), "brighter stays brighter"
    shapes = {name: source.load(i).shape for i, name in enumerate(source.names)}
    assert shapes.pop("turned.jpg") == (4, 8, 3)
    assert set(shapes.values()) == {(8, 8, 3)}


def test_transparent_pixels_are_white_and_animations_give_their_first_frame(tmp_path):
    clear = np.full((6, 6, 4), 200, dtype=np.uint8)
    clear[:3, :, 3] = 0  # the upper half
    clear[3:, :, 3] = 255
    Image.fromarray(clear).save(tmp_path / "alpha.png")
    Image.fromarray(clear[..., [0, 3]], mode="LA").save(tmp_path / "grey-alpha.png")
    palette = Image.fromarray(clear[..., 3] // 255).convert("P")  # colour 0 above, 1 below
    palette.putpalette([10, 20, 30, 200, 200, 200])
    palette.save(tmp_path / "palette.png", transparency=0)
    frames = [Image.new("RGB", (6, 6), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    for suffix in ("gif", "webp"):
        frames[0].save(tmp_path / f"moving.{suffix}", save_all=True, append_images=frames[1:], lossless=True)
    Image.new("RGB", (1, 1), (7, 8, 9)).save(tmp_path / "pixel.png")
    source = open_source(tmp_path)
    found = {name: source.load(i) for i, name in enumerate(source.names)}
    for name in ("alpha.png", "grey-alpha.png", "palette.png"):
        assert (found[name][:3] == 255).all()
        assert (found[name][3:] == 200).all()
    for suffix in ("gif", "webp"):
        assert (found[f"moving.{suffix}"] == [255, 0, 0]).all()
    assert found["pixel.png"].tolist() == [[[7, 8, 9]]]


def test_the_limit_on_pixels(tmp_path, monkeypatch):
    Image.new("L", (20_000, 30), 77).save(tmp_path / "wide.png")
    Image.new("L", (300, 300)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(pictures, "MAX_PIXELS", 1000)
    with pytest.raises(UserError, match="none of the 2 image files"):
        open_source(tmp_path)
    monkeypatch.setattr(pictures, "MAX_PIXELS", 20_000 * 30)
    source = open_source(tmp_path)
    assert source.names == ["bomb.png", "wide.png"]
    monkeypatch.setattr(pictures, "MAX_PIXELS", 300 * 300 - 1)
    with pytest.raises(Image.DecompressionBombError, match="20000 x 30"):
        source.load(1)


def test_values_that_are_not_finite_become_black(tmp_path):
    values = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    values[0, 0], values[7, 7] = np.nan, np.inf
    Image.fromarray(values).save(tmp_path / "float.tiff")
    grey = open_source(tmp_path).load(0)[..., 0]
    assert grey[0, 0] == grey[7, 7] == 0
    assert grey[7, 6] == 255


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "nowhere", "does not exist"),
        (lambda p: p, "no images found .* supported formats: .jpg"),
        (lambda p: _write(p / "a.png", b"x").parent, "none of the 1 image files"),
        (lambda p: _write(p / "a.zip", b"x"), "cannot be read as a .zip"),
        (lambda p: _write(p / "a.rar", b"x"), "unsupported file format"),
        (lambda p: np.zeros((3, 4, 5), dtype=np.float32), "uint8"),
        (lambda p: np.zeros((0, 4, 4), dtype=np.uint8), "no image"),
    ],
)
def test_data_without_images_is_an_error(make, words, tmp_path):
    with pytest.raises(UserError, match=words):
        open_source(make(tmp_path))


def _write(path, data):
    path.write_bytes(data)
    return path


def test_arrays_grey_and_colour():
    grey = np.random.default_rng(0).integers(0, 256, (10, 8, 8), dtype=np.uint8)
    source = open_source(grey)
    assert source.load(3).shape == (8, 8, 3)
    assert np.array_equal(source.load(3)[..., 1], grey[3])
    assert source.labels is None
    assert open_source(np.stack([grey] * 3, axis=3)).load(3).shape == (8, 8, 3)


def test_a_user_defined_data_set():
    class Rows:
        labels = (0, 1, 0)
        names = (7, 8, 9)

        def __len__(self):
            return 3

        def load(self, i):
            return torch.full((4,), float(i))

    source = open_source(Rows())
    assert source.labels == ["0", "1", "0"]
    assert source.side == 0
    assert open_source(Rows(), limit=2).names[0] in ("7", "8")
    assert source.load(2).tolist() == [2.0] * 4


def test_a_user_defined_data_set_of_images():
    class Images:
        def __len__(self):
            return 9

        def load(self, i):
            return np.full((10, 12, 3), i, dtype=np.uint8)

    source = open_source(Images())
    assert source.side == 10
    assert Loader(source, image_views()).square is not None


def test_labels_do_not_depend_on_the_limit(tmp_path):
    for kind in ("animals/cat", "animals/dog", "things/car"):
        (tmp_path / kind).mkdir(parents=True)
        for i in range(4):
            picture(seed=i).save(tmp_path / kind / f"{i}.png")
    for seed in range(5):
        labels = open_source(tmp_path, seed=seed, limit=2).labels
        assert set(labels) <= {"animals/cat", "animals/dog", "things/car"}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_missing_file_is_an_error_in_evaluation(tmp_path, workers):
    for i in range(4):
        picture(200, seed=i).save(tmp_path / f"{i}.png")
    loader = Loader(open_source(tmp_path), image_views(), workers=workers)
    (tmp_path / "2.png").unlink()
    with pytest.raises(UserError, match=r"2.png of .* can no longer be read") as error:
        list(loader.plain(2))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_missing_file_is_replaced_in_training(tmp_path, workers):
    for i in range(6):
        picture(200, seed=i).save(tmp_path / f"{i}.png")
    told = []
    views = image_views()
    loader = Loader(open_source(tmp_path), views, workers=workers, replaced=lambda *what: told.append(what))
    before = torch.cat([views.plain(s) for s in loader.plain(2)])
    (tmp_path / "2.png").unlink()
    (tmp_path / "3.png").write_bytes(b"broken")
    for _ in range(2):
        indices = torch.cat([s.index for s in loader.samples(torch.arange(6), epoch=1, batch_size=2)])
        assert indices.tolist() == [0, 1, 4, 4, 4, 5]
        after = torch.cat([views.plain(s) for s in loader.plain(2)])
        assert torch.equal(after, before[[0, 1, 4, 4, 4, 5]])
    assert sorted(name for name, _ in told) == ["2.png", "3.png"]  # once each
    for i in (0, 1, 4, 5):
        (tmp_path / f"{i}.png").unlink()
    with pytest.raises(UserError, match="and the 5 files before it can no longer be read: "):
        list(loader.samples(torch.arange(6), epoch=2, batch_size=2))


def test_an_intact_image_with_damaged_exif_is_decoded(tmp_path, monkeypatch):
    picture(20).save(tmp_path / "a.jpg")

    def broken(image):
        raise TypeError("required argument is not an integer")

    monkeypatch.setattr(pictures.ImageOps, "exif_transpose", broken)
    assert open_source(tmp_path).load(0).shape == (20, 20, 3)


def test_builtin_images_depend_on_the_seed():
    images, labels = builtin.draw_images("test", 0)
    again, _ = builtin.draw_images("test", 0)
    other, _ = builtin.draw_images("test", 1)
    train, _ = builtin.draw_images("train", 0)
    assert images.shape == (1500, 32, 32, 3)
    assert np.array_equal(images, again)
    assert not np.array_equal(images, other)
    assert not np.array_equal(images, train[:1500])
    assert len(set(labels)) == 30
    assert len({label.split("/")[0] for label in labels}) == 10
    assert all(labels.count(label) == 50 for label in set(labels))


def test_limit_is_a_random_subset_by_the_seed(photos):
    source = open_source(photos)
    first, again, other = (open_source(photos, seed=seed, limit=10) for seed in (0, 0, 1))
    assert len(first) == 10
    assert first.names == again.names
    assert first.names != other.names
    assert first.fingerprint != other.fingerprint
    position = [source.names.index(name) for name in first.names]
    assert position == sorted(position)
    assert np.array_equal(first.load(4), source.load(position[4]))
    assert [first.labels[i] for i in range(10)] == [source.labels[p] for p in position]
    assert len(open_source(photos, limit=1000)) == 48
    array = np.arange(20, dtype=np.uint8)[:, None, None].repeat(8, axis=1).repeat(8, axis=2)
    few = open_source(array, limit=5)
    assert [int(few.load(i).max()) for i in range(5)] == [int(name) for name in few.names]


def test_a_limit_opens_no_more_files_than_it_needs(photos, tmp_path, monkeypatch):
    """And opens others instead of unreadable ones."""
    import shutil

    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    for i in range(12):
        (folder / f"slope{i % 3}" / f"{i:02d}.png").write_text("broken")
    probed = []
    probe = sources._probe
    monkeypatch.setattr(sources, "_probe", lambda read, i: probed.append(i) or probe(read, i))
    source = open_source(folder, limit=20)
    assert len(source) == 20
    assert len(probed) == 20 + len(source.skipped) < 48
    assert len(open_source(folder, limit=40)) == 36


def test_splits_are_disjoint_and_complete(photos):
    source = open_source(photos)
    train, test = split(source, seed=0)
    assert len(test) == 10
    assert set(train.names) | set(test.names) == set(source.names)
    assert not set(train.names) & set(test.names)


def test_small_images_of_all_shapes_are_cropped_in_their_own_shape(tmp_path):
    """The map squeezes images into squares; a plain view must undo it."""
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 255  # the middle third, which is the centre crop
    Image.fromarray(wide).save(tmp_path / "wide.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "tall.png")
    views = image_views(10, mean=[0.0] * 3, std=[1.0] * 3, plain_resize=10)
    loader = Loader(open_source(tmp_path), views)
    (samples,) = loader.plain(2)
    centre = views.plain(samples)[:, :, 2:8, 2:8]
    assert centre.min() > 0.97


def test_batches_visit_each_image_of_the_order_once(photos):
    loader = Loader(open_source(photos), image_views())
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0))
    index = torch.cat([s.index for s in loader.samples(order, epoch=0, batch_size=10)])
    assert index.tolist() == order[:40].tolist(), "an incomplete last batch is left out"
    plain = torch.cat([s.index for s in loader.plain(10)])
    assert plain.tolist() == list(range(48))


@pytest.mark.parametrize("workers", [0, 2])
def test_large_images_are_loaded_by_workers(tmp_path, workers):
    for i in range(6):
        picture(200 + 10 * i, seed=i).save(tmp_path / f"{i}.png")
    views = image_views(24, plain_resize=28)
    loader = Loader(open_source(tmp_path), views, workers=workers)
    assert loader.square is None
    batches = [views.train(s)[0] for s in loader.samples(torch.arange(6), epoch=3, batch_size=3)]
    alone = Loader(open_source(tmp_path), views)
    expected = [views.train(s)[0] for s in alone.samples(torch.arange(6), epoch=3, batch_size=3)]
    for a, b in zip(batches, expected, strict=True):
        assert a.shape == (3, 3, 24, 24)
        assert torch.equal(a, b)


class Vectors:
    """A user's own data set: no images."""

    def __len__(self):
        return 6

    def load(self, i):
        return {"x": torch.full((4,), float(i)), "process": os.getpid()}


class OwnViews:
    """Three views, and nothing that the protocol does not ask for."""

    def train(self, samples):
        u = torch.from_numpy(samples.uniform("noise", 4)).float()
        return samples.data["x"], samples.data["x"] + u, samples.data["process"]

    def plain(self, samples):
        return samples.data["x"]


class PreparedViews(OwnViews):
    """The noise is added by the worker."""

    def prepare(self, item):
        assert item.encoded is None
        loaded = item.load()
        noise = 0.0 if item.plain else torch.from_numpy(item.uniform("noise", 4)).float()
        return loaded["x"], loaded["x"] + noise, torch.tensor([os.getpid(), item.index, item.seed, item.epoch])

    def train(self, samples):
        return tuple(samples.data)

    def plain(self, samples):
        return samples.data[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_views_without_prepare_get_unchanged_items(workers):
    loader = Loader(open_source(Vectors()), OwnViews(), seed=3, workers=workers)
    order = torch.tensor([4, 0, 5, 1])
    x, noisy, process = (torch.cat(v) for v in zip(*map(loader.views.train, loader.samples(order, 2, 2)), strict=True))
    assert torch.equal(x, order[:, None].expand(4, 4).float())
    u = protonce.randomness.uniform(3, "noise", 2, order.numpy(), 4)
    assert torch.equal(noisy, x + torch.from_numpy(u).float())
    assert (os.getpid() in process) == (workers == 0)
    assert torch.cat([loader.views.plain(s) for s in loader.plain(4)])[:, 0].tolist() == list(range(6))


@pytest.mark.parametrize("workers", [0, 2])
def test_views_with_prepare_prepare_items_in_the_worker(workers):
    source, order = open_source(Vectors()), torch.tensor([4, 0, 5, 1])
    loader, other = Loader(source, PreparedViews(), seed=3, workers=workers), Loader(source, OwnViews(), seed=3)
    for samples, expected in zip(loader.samples(order, 2, 2), other.samples(order, 2, 2), strict=True):
        x, noisy, told = loader.views.train(samples)
        assert torch.equal(x, other.views.train(expected)[0])
        assert torch.equal(noisy, other.views.train(expected)[1])
        assert (told[:, 0] == os.getpid()).all() == (workers == 0)
        assert told[:, 1:].tolist() == [[i, 3, 2] for i in samples.index.tolist()]
    assert torch.cat([loader.views.plain(s) for s in loader.plain(4)])[:, 0].tolist() == list(range(6))


@pytest.mark.parametrize("side", [20, 200])
def test_user_defined_views_of_images(tmp_path, side):
    """Whole images unless they ask for squares; a `prepare` gets the encoded image of a file."""
    for i in range(4):
        picture(side, seed=i).save(tmp_path / f"{i}.png")
    source = open_source(tmp_path)
    wholes = torch.stack([torch.from_numpy(source.load(i)) for i in range(4)])

    class Whole:
        def plain(self, samples):
            return samples.data

    loader = Loader(source, Whole())
    assert torch.equal(torch.cat([loader.views.plain(s) for s in loader.plain(3)]), wholes)

    class Opened(Whole):
        def prepare(self, item):
            with item.encoded() as file:
                return torch.from_numpy(pictures.decode(file).pixels)

    loader = Loader(source, Opened())
    assert torch.equal(torch.cat([loader.views.plain(s) for s in loader.plain(3)]), wholes)

    class Small(Opened):
        takes_squares = True

        def plain(self, samples):
            return samples.data.pixels.permute(0, 2, 3, 1) if side == 20 else samples.data

    loader = Loader(source, Small())
    assert (loader.square is not None) == (side == 20)
    assert torch.equal(torch.cat([loader.views.plain(s) for s in loader.plain(3)]), wholes)


@pytest.mark.parametrize("name", ["large.zip", "large.tar", "large.tar.gz"])
def test_members_are_read_by_several_workers(tmp_path, name):
    folder = tmp_path / "large"
    folder.mkdir()
    for i in range(6):
        picture(150, seed=i).save(folder / f"{i}.png")
    views = image_views(24)
    archive = open_source(PLACES[name.replace("large", "photos")](folder, tmp_path / name))
    archive.load(0)  # the file is open here before the workers are made
    a = torch.cat([views.plain(s) for s in Loader(archive, views, workers=2).plain(2)])
    b = torch.cat([views.plain(s) for s in Loader(open_source(folder), views).plain(2)])
    assert torch.equal(a, b)


def test_a_forked_process_opens_the_zip_for_itself(photos, tmp_path, monkeypatch):
    """Or it would share the offset in the file with its parent, and read another member's bytes now and then."""
    path = zip_of(photos, tmp_path / "photos.zip")
    members = listings._Zip(path, ["slope0/00.png"])
    members(0)
    parents = members.local.file
    members(0)
    assert members.local.file is parents
    monkeypatch.setattr(listings.os, "getpid", lambda: -1)
    members(0)
    assert members.local.file is not parents


def test_real_archives(shared_data):
    cifar = open_source(shared_data / "cifar10" / "test.zip")
    assert (len(cifar), len(set(cifar.labels)), cifar.side) == (10000, 10, 32)
    nette = open_source(shared_data / "imagenette128" / "val.zip")
    assert (len(nette), len(set(nette.labels)), nette.side) == (3925, 10, 128)
    buffer = io.BytesIO()
    Image.fromarray(nette.load(0)).save(buffer, format="PNG")
    assert len(buffer.getvalue()) > 1000


def test_workers_end_when_their_parent_is_killed():
    """Whether it is killed before or after they start."""
    init = loader_module._InitWorker
    late = os.fork()
    if late == 0:
        init(parent=-1, forked=True)(0)
        os._exit(0)
    assert os.waitpid(late, 0)[1] == 256  # exit code 1

    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        me = os.getpid()
        if os.fork() == 0:
            init(parent=me, forked=True)(0)
            os.write(write, b"%d" % os.getpid())
            time.sleep(60)
            os._exit(0)
        time.sleep(60)
        os._exit(0)
    worker = int(os.read(read, 20))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    for _ in range(100):
        if not Path(f"/proc/{worker}").exists() or "zombie" in Path(f"/proc/{worker}/status").read_text():
            return
        time.sleep(0.05)
    raise AssertionError("the worker is still running")
