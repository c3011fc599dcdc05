"""Folders with links, pipes, devices and files without a suffix."""

import itertools
import os
import shutil
import socket

import numpy as np
import pytest

from conftest import _write, picture
from protonce.data import folders
from protonce.data.sources import open_source
from protonce.errors import UserError


@pytest.fixture
def odd_folder(tmp_path, monkeypatch):
    """An image beside a named pipe, a socket and a device, under their own names and behind links."""
    folder = tmp_path / "photos"
    folder.mkdir()
    monkeypatch.chdir(folder)  # the path of a socket must be short
    picture(seed=1).save("good.png")
    os.mkfifo("pipe.png")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket.jpg")
    os.mkfifo(tmp_path / "pipe")
    for name, target in (("link.png", tmp_path / "pipe"), ("null.png", "/dev/zero"), ("folder.gif", tmp_path)):
        (folder / name).symlink_to(target)
    os.mkfifo("pipe without suffix")
    return folder


def test_only_regular_files_are_opened(odd_folder):
    """Opening the pipes would never return."""
    source = open_source(odd_folder)
    assert source.names == ["good.png"]
    reasons = {s.name: s.reason for s in source.skipped}
    assert reasons == dict.fromkeys(["link.png", "null.png", "pipe.png", "socket.jpg"], "not a regular file")


def test_only_regular_files_of_a_table_are_opened(odd_folder):
    names = ["good.png", "pipe.png", "link.png", "null.png", "socket.jpg", ".", "/dev/zero", "x" * 300 + ".png"]
    table = _write(odd_folder / "table.csv", "\n".join(["path", *names]).encode())
    source = open_source(table)
    assert source.names == ["good.png"]
    assert {s.name for s in source.skipped} == {*names} - {"good.png"}
    assert {s.reason for s in source.skipped} == {"not a regular file", "File name too long"}


def test_each_folder_is_visited_once(tmp_path):
    """Two links to the next of 22 folders in each would lead to four million folders."""
    chain = [tmp_path / "chain" / str(i) for i in range(23)]
    for here in chain:
        here.mkdir(parents=True)
        picture(6, seed=len(here.name)).save(here / "image.png")
    for here, following in itertools.pairwise(chain):
        for name in ("left", "right"):
            (here / name).symlink_to(following)
    assert len(folders.list_folder(chain[0]).names) == 23
    assert folders.list_folder(chain[0]).names[0] == "image.png"
    assert folders.list_folder(tmp_path).names == sorted(f"chain/{i}/image.png" for i in range(23))


def test_the_name_of_a_folder_with_several_names(tmp_path):
    """Its own, else that in the fewest folders, else the first by name; not the order in which the disk has them."""
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "photos"
    for place in (elsewhere / "inner", root / "real", root / "a" / "deep"):
        place.mkdir(parents=True)
        picture(6).save(place / "1.png")
    links = {"best": root / "real", "z": elsewhere, "y": elsewhere, "a/deep/x": elsewhere, "up": tmp_path, "b": "/"}
    for order in (list(links), list(links)[::-1]):
        copy = shutil.copytree(root, tmp_path / "copy")
        for name in order:
            target = links[name]
            (copy / name).symlink_to(copy / "real" if name == "best" else target)
        assert folders.list_folder(copy).names == ["a/deep/1.png", "real/1.png", "y/inner/1.png"]
        shutil.rmtree(copy)


def test_images_without_a_suffix_are_recognised(tmp_path):
    formats = ["jpeg", "png", "gif", "bmp", "tiff", "webp", "ppm"]
    for i, kind in enumerate(formats):
        picture(8, seed=i).save(tmp_path / kind, kind)
    picture(8).convert("L").save(tmp_path / "pgm", "ppm")
    for name, content in {
        "README": b"Plain words, P6 even.",
        "LICENSE": b"BM and GIF are formats",
        "empty": b"",
        "Makefile": b"all:\n\techo",
        "archive": b"PK\x03\x04",
        "sound": b"RIFF\0\0\0\0WAVEfmt ",
        ".hidden": (tmp_path / "png").read_bytes(),
        "image.dat": (tmp_path / "png").read_bytes(),
    }.items():
        _write(tmp_path / name, content)
    source = open_source(tmp_path)
    assert source.names == sorted([*formats, "pgm"])
    assert source.skipped == []
    assert np.array_equal(source.load(source.names.index("png")), np.asarray(picture(8, seed=1)))


def test_folders_that_cannot_be_read_are_said(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    picture(6).save(tmp_path / "closed" / "1.png")
    picture(6).save(tmp_path / "2.png")
    scandir = os.scandir

    def closed(path):  # permissions do not stop an administrator, who may run the tests
        if path == str(tmp_path / "closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(folders.os, "scandir", closed)
    source = open_source(tmp_path)
    assert source.names == ["2.png"]
    assert source.notes == [f"{tmp_path / 'closed'} cannot be read and was left out: Permission denied"]
    (tmp_path / "2.png").unlink()
    with pytest.raises(UserError, match="no images found"):
        open_source(tmp_path)
