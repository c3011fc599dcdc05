"""Sources: folders, arrays and objects, their labels, limits and splits."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import _write, image_views, picture
from protonce.data import sources
from protonce.data.folder_labels import folder_labels, split_folders
from protonce.data.loader import Loader
from protonce.data.sources import open_source
from protonce.data.splitting import split
from protonce.errors import UserError


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


def test_a_file_listed_twice_through_links_is_on_one_side(photos, tmp_path):
    for name in ("a", "b"):
        (tmp_path / "linked" / name).mkdir(parents=True)
        for file in (photos / "slope0").iterdir():
            (tmp_path / "linked" / name / file.name).symlink_to(file)
    (tmp_path / "linked" / "loop.png").symlink_to(tmp_path / "linked" / "loop.png")
    source = open_source(tmp_path / "linked")
    assert (len(source), [s.name for s in source.skipped]) == (32, ["loop.png"])
    trained, tested = split(source, seed=0, share=0.4)
    assert len(trained) + len(tested) == 32
    assert tested.files
    assert not {*trained.files} & {*tested.files}


def test_labels_are_the_folders_below_the_common_one():
    assert folder_labels(["a/1.png", "b/2.png"]) == ["a", "b"]
    assert folder_labels(["set/train/a/1.png", "set/train/b/x/2.png"]) == ["a", "b/x"]
    assert folder_labels(["1.png", "2.png"]) is None
    assert folder_labels(["photos/1.png", "photos/2.png"]) is None
    assert folder_labels(["a/1.png", "2.png"]) is None, "an image beside the folders has no class"


def test_splits_are_not_classes():
    """Classes are the folders inside them; images directly in a split have none."""
    names = [
        f"set/{part}/{c}/{i}.png" for part in ("Train", "val", "test") for c in ("cat", "dog/small") for i in (0, 1)
    ]
    assert split_folders(names) == ["Train", "test", "val"]
    assert folder_labels(names) == ["cat", "cat", "dog/small", "dog/small"] * 3
    assert folder_labels([*names, "set/test/9.png"]) is None
    assert folder_labels(["train/1.png", "test/2.png"]) is None
    for other in (
        ["train/cat/1.png", "bus/red/2.png"],
        ["train/cat/1.png", "train/dog/2.png"],
        ["train/1.png", "2.png"],
    ):
        assert split_folders(other) == []
    assert folder_labels(["train/cat/1.png", "bus/red/2.png"]) == ["train/cat", "bus/red"]


def test_splits_in_one_folder_are_said(photos, tmp_path):
    assert open_source(photos).notes == []
    for part in ("train", "valid", "test"):
        shutil.copytree(photos, tmp_path / "flowers" / part)
    source = open_source(tmp_path / "flowers")
    assert sorted(set(source.labels)) == ["slope0", "slope1", "slope2"]
    assert source.notes == [
        "all images of the splits test, train, valid are used, and the folders inside them are the classes; "
        "give one of them to use it alone"
    ]
    assert source.subset(np.arange(3)).notes == source.notes
    picture().save(tmp_path / "flowers" / "test" / "beside.png")
    source = open_source(tmp_path / "flowers")
    assert source.labels is None
    assert "they are not classes, so there are no labels" in source.notes[0]


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


class Own:
    """A user's own data set."""

    def __init__(self, items, **lists):
        self.items = items
        self.__dict__ |= lists

    def __len__(self):
        return len(self.items)

    def load(self, i):
        return self.items[i]


def test_a_user_defined_data_set_of_pillow_images(tmp_path):
    """They are converted as files are: RGB, on white, upright."""
    clear = Image.fromarray(np.full((5, 6, 4), 80, dtype=np.uint8) * np.array([1, 1, 1, 0], dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(7).crop((0, 0, 7, 4)).save(tmp_path / "turned.png", exif=exif)
    items = [picture(6), picture(5).convert("L"), clear, Image.open(tmp_path / "turned.png")]
    source = open_source(Own(items))
    assert source.sizes.tolist() == [[6, 6], [5, 5], [5, 6], [7, 4]]
    assert np.array_equal(source.load(0), np.asarray(picture(6)))
    assert np.array_equal(source.load(1)[..., 2], np.asarray(items[1]))
    assert (source.load(2) == 255).all()
    assert np.array_equal(source.load(3), open_source(tmp_path).load(0))
    assert items[1].mode == "L"
    assert open_source(items[:1] * 3).load(2).shape == (6, 6, 3)  # a list of images of one shape is an array


@pytest.mark.filterwarnings("error")
def test_read_only_and_reversed_arrays_become_tensors():
    image = np.asarray(picture(140))
    assert not image.flags.writeable
    sources = [
        Own([image, image[:, ::-1]]),
        np.broadcast_to(image, (2, *image.shape)),
        image[None, ..., 0].repeat(2, 0),
    ]
    for data in sources:
        source = open_source(data)
        (samples,) = Loader(source, image_views(24)).plain(2)
        assert samples.data[0].shape == (2, 3, 24, 24)
    flipped = open_source(sources[0]).load(1)
    assert np.array_equal(flipped, image[:, ::-1])
    rows = Own([{"x": np.broadcast_to(np.float32(i), 4)} for i in range(3)])
    (samples,) = Loader(open_source(rows), object()).plain(3)
    assert samples.data["x"].tolist() == [[i] * 4 for i in range(3)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([picture(4), "b.png"], "item 1 of a list of 2 images is of type str, but the first item is an image"),
        (["a.png", "b.png"], "none of the 2 image files in a list of 2 paths can be read, e.g. a.png"),
        ({"images": 3}, "data of type dict cannot be opened"),
        (None, "data of type NoneType cannot be opened"),
        (7, "data of type int cannot be opened"),
        (picture(4), "data of type Image cannot be opened"),
        (torch.zeros(2, 4, 4, 3), "must be a uint8 array"),
        (Own([picture(4), np.zeros((4, 4, 3))]), r"item 1 of .* is an array of shape \(4, 4, 3\) and dtype float64"),
        (Own([picture(4), None]), "item 1 of .* is of type NoneType, but the first item is an image"),
        (Own([]), "the data set is empty"),
        (Own([picture(4)], labels=["x" * 1001]), "a label of .* has 1,001 characters, but at most 1,000 are allowed"),
        (Own([picture(4)], names=["a\0b"]), "contains characters that are not text"),
        (Own([picture(4)], labels=["\ud800"]), "contains characters that are not text"),
        ("x" * 5000, "does not exist; give a folder"),
        ("a\0b", "does not exist; give a folder"),
        ("CIFAR10:" + "x" * 5000, "cannot be opened"),
    ],
    ids=range(16),
)
def test_what_cannot_be_opened_is_said(data, words):
    with pytest.raises(UserError, match=words) as error:
        open_source(data)
    assert "\n" not in str(error.value)


def test_labels_do_not_depend_on_the_limit(tmp_path):
    for kind in ("animals/cat", "animals/dog", "things/car"):
        (tmp_path / kind).mkdir(parents=True)
        for i in range(4):
            picture(seed=i).save(tmp_path / kind / f"{i}.png")
    for seed in range(5):
        labels = open_source(tmp_path, seed=seed, limit=2).labels
        assert set(labels) <= {"animals/cat", "animals/dog", "things/car"}


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
