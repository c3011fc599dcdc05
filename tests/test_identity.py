"""Identities: whether two sources have the same content."""

import os

import numpy as np
import pytest
import torch

from conftest import picture, tar_of, zip_of
from protonce.data import sources
from protonce.data.sources import open_source


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
