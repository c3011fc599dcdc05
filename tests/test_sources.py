"""Sources: folders, arrays and objects, their labels, limits and splits."""

import shutil

import numpy as np
import pytest
import torch

from conftest import _write, picture
from protonce.data import sources
from protonce.data.sources import folder_labels, open_source, split
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
        (tmp_path / "linked" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "linked" / name).symlink_to(photos / "slope0")
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
