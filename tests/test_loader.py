"""The loader: batches, workers, missing files, and views of the user's own."""

import errno
import os
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import protonce
from conftest import image_views, picture
from protonce.data import loader as loader_module
from protonce.data import pictures, scratch
from protonce.data.loader import Loader
from protonce.data.sources import open_source
from protonce.errors import UserError


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


def test_a_user_defined_data_set_of_images():
    class Images:
        def __len__(self):
            return 9

        def load(self, i):
            return np.full((10, 12, 3), i, dtype=np.uint8)

    source = open_source(Images())
    assert source.side == 10
    assert Loader(source, image_views()).square is not None


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


def test_no_space_for_decoded_images(photos, monkeypatch):
    """A sparse file would end the process by SIGBUS as soon as the disk is full."""
    source, reserved = open_source(photos), []

    def full(file, start, size):
        reserved.append((start, size))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    words = r"cannot keep the decoded images in .* \(0.1 MB needed\): no space left; set TMPDIR to a folder on a larger"
    with pytest.raises(UserError, match=words):
        Loader(source, image_views())
    assert reserved == [(0, 48 * 3 * 20 * 20)]
    monkeypatch.setattr(tempfile, "gettempdir", lambda: full(0, 0, 0))  # no folder is writable
    with pytest.raises(UserError, match="no space left"):
        Loader(source, image_views())


def test_space_for_decoded_images_is_allocated(photos, monkeypatch):
    """Whether the system can reserve it or zeros have to be written."""
    source = open_source(photos)

    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    for reserve in (os.posix_fallocate, unsupported):
        monkeypatch.setattr(os, "posix_fallocate", reserve)
        with scratch.create("test", 3_000_000) as file:
            found = os.fstat(file.fileno())
            assert found.st_size == 3_000_000
            assert found.st_blocks * 512 >= 3_000_000
            assert file.tell() == 0
        square = Loader(source, image_views()).square
        assert np.array_equal(square.pixels[7], source.load(7).transpose(2, 0, 1))


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
