"""Pictures of every mode become RGB, upright, and of a size that fits."""

import numpy as np
import pytest
from PIL import Image

from conftest import picture
from protonce.data import pictures
from protonce.data.sources import open_source
from protonce.errors import UserError


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


def test_an_intact_image_with_damaged_exif_is_decoded(tmp_path, monkeypatch):
    picture(20).save(tmp_path / "a.jpg")

    def broken(image):
        raise TypeError("required argument is not an integer")

    monkeypatch.setattr(pictures.ImageOps, "exif_transpose", broken)
    assert open_source(tmp_path).load(0).shape == (20, 20, 3)
