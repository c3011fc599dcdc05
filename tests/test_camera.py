"""HEIC and camera RAW: real files made here, read through the optional packages, and what is said without them."""

import csv
import io
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from conftest import zip_of
from protonce.cli import main
from protonce.data import camera, pictures
from protonce.data.sources import open_source
from test_tidy import scene


def heic(path, side=96):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(scene(0, side)).save(path, quality=95)
    return path


def dng(path, side=64, orientation=1):
    """A digital negative: the grey mosaic of a scene, as a sensor of 16 bits with a pattern of red, green and blue."""
    mosaic = np.asarray(scene(1, side).convert("L")).astype("<u2") * 256
    identity = [v for row in np.eye(3, dtype=int).tolist() for number in row for v in (number, 1)]
    tags = [  # number, type (1 byte, 2 text, 3 short, 4 long, 5 and 10 ratio), values
        (254, 4, [0]), (256, 4, [side]), (257, 4, [side]), (258, 3, [16]), (259, 3, [1]), (262, 3, [32803]),
        (271, 2, b"protonce\0"), (272, 2, b"test\0"), (273, 4, [0]), (274, 3, [orientation]), (277, 3, [1]),
        (278, 4, [side]), (279, 4, [mosaic.nbytes]), (33421, 3, [2, 2]), (33422, 1, [0, 1, 1, 2]),
        (50706, 1, [1, 4, 0, 0]), (50708, 2, b"protonce test\0"), (50717, 4, [65535]), (50721, 10, identity),
        (50728, 5, [1, 1] * 3), (50778, 3, [21]),
    ]  # fmt: skip
    forms = {1: "B", 2: "s", 3: "H", 4: "I", 5: "I", 10: "i"}
    start = 8 + 2 + 12 * len(tags) + 4
    extra, entries = b"", b""
    for number, kind, values in tags:
        data = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}{forms[kind]}", *values)
        count = len(values) // 2 if kind in (5, 10) else len(values)
        if number == 273:
            data = struct.pack("<I", 0)  # filled in below
        if len(data) > 4:
            field = struct.pack("<I", start + len(extra))
            extra += data + b"\0" * (len(data) % 2)
        else:
            field = data.ljust(4, b"\0")
        entries += struct.pack("<HHI", number, kind, count) + field
    place = [number for number, _, _ in tags].index(273) * 12 + 8
    entries = entries[:place] + struct.pack("<I", start + len(extra)) + entries[place + 4 :]
    header = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags))
    path.write_bytes(header + entries + b"\0" * 4 + extra + mosaic.tobytes())
    return path


def correlation(a, b):
    return np.corrcoef(np.asarray(a, dtype=float).ravel(), np.asarray(b, dtype=float).ravel())[0, 1]


def test_heic_is_read(tmp_path):
    pixels = open_source(heic(tmp_path / "a.heic").parent, "train", 0).load(0)
    assert pixels.shape == (96, 96, 3)
    assert correlation(pixels, scene(0)) > 0.98


def test_raw_is_developed_at_half_its_size(tmp_path):
    pytest.importorskip("rawpy")
    source = open_source(dng(tmp_path / "a.dng").parent, "train", 0)
    assert source.sizes.tolist() == [[32, 32]]
    expected = scene(1, 64).convert("L").resize((32, 32), Image.Resampling.BOX)
    assert correlation(Image.fromarray(source.load(0)).convert("L"), expected) > 0.95


def test_by_content_also_in_archives_and_without_a_suffix(tmp_path):
    pytest.importorskip("rawpy")
    folder = tmp_path / "photos"
    folder.mkdir()
    heic(folder / "one.heic")
    dng(folder / "two.dng")
    scene(2).save(folder / "three.png")
    source = open_source(zip_of(folder, tmp_path / "photos.zip"), "train", 0)
    assert source.names == ["one.heic", "three.png", "two.dng"]
    assert source.skipped == []
    (folder / "one.heic").rename(folder / "one")
    assert "one" in open_source(folder, "train", 0).names


def test_a_damaged_file_is_skipped_with_a_reason(tmp_path):
    for path in (heic(tmp_path / "a.heic"), dng(tmp_path / "b.dng")):
        path.write_bytes(path.read_bytes()[:900])
    scene(0).save(tmp_path / "c.png")
    source = open_source(tmp_path, "train", 0)
    assert source.names == ["c.png"]
    assert all(skipped.reason for skipped in source.skipped)


@pytest.mark.parametrize(("package", "name"), [("pillow_heif", "pillow-heif"), ("rawpy", "rawpy")])
def test_without_the_package_one_sentence_says_what_to_install(package, name, tmp_path, monkeypatch, capsys):
    made = heic(tmp_path / "a.heic") if package == "pillow_heif" else dng(tmp_path / "a.dng")
    camera.add_heic.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(camera.MissingPackageError, match=f"needs the package {name}: pip install"):
        pictures.decode(io.BytesIO(made.read_bytes()))
    assert main(["train", str(tmp_path), "--out", str(tmp_path / "run")]) == 2
    assert f"needs the package {name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["train", "--epochs", "1", "--recipe", "small-v2", "--batch-size", "8"], ["import", "untrained"]]
)
def test_files_that_need_a_package_are_mentioned_beside_others(command, tmp_path, monkeypatch, capsys):
    """A folder of a phone has both: the photos that can be read must not hide that the others were left out."""
    (tmp_path / "photos").mkdir()
    for i in range(16):
        scene(i).save(tmp_path / "photos" / f"{i}.jpg")
    for name in ("a.heic", "b.heic"):
        heic(tmp_path / "photos" / name)
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no picture")
    camera.add_heic.cache_clear()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    small = ["--backbone", "resnet10t", "--width", "4", "--dim", "16", "--image-size", "16", "--clusters", "2,4"]
    data = ["--data", str(tmp_path / "photos")] if command[0] == "import" else [str(tmp_path / "photos")]
    assert main([*command, *data, "--out", str(tmp_path / "run"), "--device", "cpu", *small]) == 0
    said = capsys.readouterr().err
    assert "16 images of" in said
    assert "3 skipped (skipped.csv says why)" in said
    assert "note: 2 files skipped: HEIC needs the package pillow-heif: pip install 'protonce[photos]'\n" in said
    with (tmp_path / "run" / "skipped.csv").open() as file:
        assert {row["name"] for row in csv.DictReader(file)} == {"a.heic", "b.heic", "broken.jpg"}


def test_a_usual_tiff_is_no_raw(tmp_path):
    scene(0).save(tmp_path / "a.tif")
    assert correlation(open_source(tmp_path, "train", 0).load(0), scene(0)) > 0.999
