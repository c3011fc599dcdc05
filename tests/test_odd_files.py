"""A folder as disks have them: pictures of every kind, broken ones among them. And folders of others, as they are."""

import csv
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

import protonce
from conftest import SMALL


def pixels(rng, mode="RGB"):
    height, width = rng.integers(9, 60, 2)
    channels = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,), "CMYK": (4,)}[mode]
    return Image.fromarray(rng.integers(0, 256, (height, width, *channels), dtype=np.uint8), mode)


def saver(mode, suffix, convert=None, **options):
    def write(path, rng):
        image = pixels(rng, mode)
        image = image.convert(convert) if convert else image
        image.save(path.with_suffix(suffix), **options)
        return path.with_suffix(suffix)

    return write


def array_saver(suffix, make):
    def write(path, rng):
        Image.fromarray(make(rng)).save(path.with_suffix(suffix))
        return path.with_suffix(suffix)

    return write


def animated(suffix):
    def write(path, rng):
        frames = [pixels(rng).resize((20, 20)) for _ in range(3)]
        frames[0].save(path.with_suffix(suffix), save_all=True, append_images=frames[1:])
        return path.with_suffix(suffix)

    return write


def turned(path, rng):
    exif = Image.Exif()
    exif[0x0112] = int(rng.integers(2, 9))
    pixels(rng).save(path.with_suffix(".jpg"), exif=exif)
    return path.with_suffix(".jpg")


def damaged_exif(path, rng):
    pixels(rng).save(path.with_suffix(".jpg"), exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01")
    return path.with_suffix(".jpg")


def shape(height, width):
    return array_saver(".png", lambda rng: rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def named(name):
    def write(path, rng):
        target = path.parent / f"{path.name}{name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        pixels(rng).save(target, "png")
        return target

    return write


def link(path, rng):
    original = path.with_name(path.name + "-original.bin")  # no name of an image: found by the link alone
    pixels(rng).save(original, "png")
    path.with_suffix(".png").symlink_to(original)
    return path.with_suffix(".png")


GOOD = [
    saver("RGB", ".jpg"),
    saver("RGB", ".jpg", progressive=True),
    saver("L", ".jpg"),
    saver("CMYK", ".jpg"),
    saver("RGB", ".png"),
    saver("RGBA", ".png"),
    saver("LA", ".png"),
    saver("L", ".png", convert="1"),
    saver("RGB", ".png", convert="P"),
    saver("L", ".png", convert="P", transparency=3),
    saver("RGB", ".bmp"),
    saver("RGB", ".ppm"),
    saver("RGBA", ".webp"),
    saver("RGB", ".webp", lossless=True),
    saver("RGB", ".gif", convert="P"),
    saver("RGB", ".tif"),
    saver("CMYK", ".tiff"),
    array_saver(".png", lambda rng: rng.integers(0, 65536, (20, 30), dtype=np.uint16)),
    array_saver(".tif", lambda rng: rng.integers(0, 65536, (20, 30), dtype=np.uint16)),
    array_saver(".tif", lambda rng: rng.normal(size=(20, 30)).astype(np.float32)),
    array_saver(".tif", lambda rng: np.full((9, 9), np.nan, dtype=np.float32)),
    animated(".gif"),
    animated(".webp"),
    animated(".tif"),
    animated(".png"),
    turned,
    damaged_exif,
    shape(1, 1),
    shape(1, 20_000),
    shape(700, 2),
    named(".PNG"),
    named(".jpg"),  # what it is decides, not what it is called
    named(" with a space.png"),
    named("-ümläut-写真.png"),
    named("-line\nfeed.png"),
    named("-no-utf-8-\udcff.png"),
    named("/deeper/still.png"),
    link,
]


def content(suffix, make):
    def write(path, rng):
        path.with_suffix(suffix).write_bytes(make(rng))
        return path.with_suffix(suffix)

    return write


def encoded(rng, kind, **options):
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(buffer, kind, **options)
    return buffer.getvalue()


def png_of(width, height):
    """The head of a PNG that says it is this large, and a little of its data."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))))
    )
    return PngImagePlugin._MAGIC + chunks


def dangling(path, rng):
    path.with_suffix(".jpg").symlink_to("nowhere.jpg")
    return path.with_suffix(".jpg")


BROKEN = [
    content(".jpg", lambda rng: b""),
    content(".png", lambda rng: b"not a picture"),
    content(".jpg", lambda rng: b"<html><body>404 Not Found</body></html>"),
    content(".jpg", lambda rng: encoded(rng, "jpeg")[:300]),
    content(".jpg", lambda rng: encoded(rng, "jpeg", progressive=True)[:200]),
    content(".png", lambda rng: encoded(rng, "png")[:900]),
    content(".png", lambda rng: encoded(rng, "png")[:-60] + bytes(60)),
    content(".gif", lambda rng: encoded(rng, "gif")[:60]),
    content(".webp", lambda rng: encoded(rng, "webp")[:100]),
    content(".tif", lambda rng: encoded(rng, "tiff")[:100]),
    content(".bmp", lambda rng: encoded(rng, "bmp")[:100]),
    content(".png", lambda rng: png_of(30_000, 30_000)),  # it would fill 2.7 GB
    content(".png", lambda rng: b"PK\x03\x04" + bytes(100)),
    dangling,
]


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory):
    """300 files; which of them can be read, and which cannot."""
    folder = tmp_path_factory.mktemp("odd")
    rng = np.random.default_rng(0)
    good, broken = set(), set()
    for i in range(300):
        kinds, names, turn = (BROKEN, broken, i // 3) if i % 3 == 2 else (GOOD, good, i // 3 * 2 + i % 3)
        (folder / f"{i:03d}").mkdir()
        written = kinds[turn % len(kinds)](folder / f"{i:03d}" / "x", rng)
        names.add(written.relative_to(folder).as_posix())
    return folder, good, broken


@pytest.mark.parametrize("workers", [0, 2])
def test_everything_decodable_is_used_and_everything_else_is_listed(odd_files, tmp_path, workers):
    folder, good, broken = odd_files
    settings = {**SMALL, "batch_size": 32, "workers": workers, "epochs": 1}
    run = protonce.train(folder, tmp_path / "run", quiet=True, **settings)
    assert set(run.images[0]) == good
    with (run.path / "skipped.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        skipped = {row["name"]: row["reason"] for row in csv.DictReader(file)}
    assert set(skipped) == broken
    assert all(skipped.values()), "each with its reason"
    reasons = " ".join(skipped.values())
    assert "more than 178,000,000 pixels" in reasons
    assert "No such file" in reasons
    assert len(run.embed(folder).features) == len(good) == 200


@pytest.mark.parametrize(
    ("data", "images"), [("coco128/train2017", 128), ("voc_layout", 531), ("voc_layout/VOCdevkit/VOC2007", 531)]
)
def test_training_on_real_folders(shared_data, tmp_path, data, images):
    settings = {**SMALL, "batch_size": 64, "workers": 2, "epochs": 1}
    run = protonce.train(shared_data / data, tmp_path / "run", quiet=True, **settings)
    assert run.finished
    assert len(run.images[0]) == images
    assert (run.path / "skipped.csv").read_text() == "name,reason\n"
