"""Pictures of every mode become RGB, upright, and of a size that fits; `probe` and `decode` agree on damaged ones."""

import io
import struct
import threading
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from conftest import picture
from mutants import mutate
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


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def samples():
    """Small pictures in every format and mode that matters to decoding."""
    image = picture(6).resize((61, 43))
    turned = Image.Exif()
    turned[0x0112] = 6
    jpegs = ({}, {"progressive": True}, {"subsampling": 0}, {"exif": turned}, {"restart_marker_blocks": 2})
    found = [encoded(image, "jpeg", **options) for options in jpegs]
    found += [encoded(image.convert(mode), "jpeg") for mode in ("L", "CMYK")]
    found += [encoded(image.convert(mode), "png") for mode in ("RGB", "L", "P", "1", "RGBA", "LA", "I;16")]
    found += [encoded(image, "png", exif=turned), encoded(image, "gif"), encoded(image, "bmp"), encoded(image, "ppm")]
    found += [encoded(image, "webp"), encoded(image.convert("RGBA"), "webp", lossless=True)]
    tiffs = [image, image.convert("CMYK"), image.convert("F"), image.convert("LAB")]
    return found + [encoded(tiff, "tiff") for tiff in tiffs] + [encoded(image, "tiff", compression="tiff_lzw")]


def outcome(data, factor):
    try:
        return pictures.decode(io.BytesIO(data), lambda *_: factor)
    except Exception:
        return None


@pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::UserWarning")
def test_probe_accepts_what_decode_accepts(capfd):
    """Of damaged files, too, whatever the size at which a JPEG is decoded; and the pixels have the stated shape."""
    rng = np.random.default_rng(0)
    originals = samples()
    accepted, cases = 0, 25
    for original in originals:
        for data in [original, *(mutate(rng, original)[0] for _ in range(cases))]:
            probed, found = pictures.probe(io.BytesIO(data)), outcome(data, 1)
            if isinstance(probed, str):
                assert probed
                assert found is None, probed
                continue
            accepted += 1
            assert found.pixels.shape == (*probed, 3)
            assert found.shape == probed
            for factor in (2, 4, 8):
                assert outcome(data, factor).shape == probed
    assert accepted > 0.2 * cases * len(originals)
    capfd.readouterr()  # libtiff writes to stderr about damaged files


def test_the_second_attempt_to_load_a_damaged_image_does_not_count():
    """Pillow's `load` fails once and then succeeds; EXIF must not be the reason for another attempt."""
    data = bytearray(encoded(picture(60), "png"))
    data[len(data) // 2] ^= 1
    with Image.open(io.BytesIO(data)) as image:
        with pytest.raises(OSError, match=r"broken|unrecognized"):
            image.load()
        image.load()
    assert isinstance(pictures.probe(io.BytesIO(data)), str)
    with pytest.raises(OSError, match=r"broken|unrecognized"):
        pictures.decode(io.BytesIO(data))


def blank_png(width, height, depth, colours):
    """An image of zeros: bits per value, and PNG's type of colours."""
    line = 1 + width * {0: 1, 2: 3, 6: 4}[colours] * depth // 8
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0),
        b"IDAT": zlib.compress(bytes(line * height)),
        b"IEND": b"",
    }
    parts = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks.items())
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_large_images_are_decoded_one_at_a_time(monkeypatch):
    """Or as many threads as there are cores would need 1.4 GB each."""
    monkeypatch.setattr(pictures, "LARGE", 50 * 50)
    decoding, most, convert = set(), [], pictures.to_rgb

    def watched(image):
        decoding.add(threading.get_ident())
        time.sleep(0.01)
        most.append(len(decoding))
        decoding.remove(threading.get_ident())
        return convert(image)

    monkeypatch.setattr(pictures, "to_rgb", watched)
    data = encoded(picture(60), "png")
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(pictures.probe, [io.BytesIO(data) for _ in range(12)])) == {(60, 60)}
    assert most == [1] * 12


def test_the_limit_on_memory_depends_on_the_format(monkeypatch):
    monkeypatch.setattr(pictures, "MAX_BYTES", 14 * 50 * 50)
    for kind, accepted in (("png", True), ("jpeg", True), ("webp", False)):
        probed = pictures.probe(io.BytesIO(encoded(picture(50), kind)))
        assert probed == (50, 50) if accepted else probed.endswith("GB needed to decode 50 x 50 pixels")


def test_an_image_with_a_very_long_side_is_skipped():
    wide = blank_png(1_000_001, 1, 8, 0)
    assert pictures.probe(io.BytesIO(wide)) == "more than 1,000,000 pixels in a row or column: 1000001 x 1"
    assert pictures.probe(io.BytesIO(blank_png(1, 1_000_001, 8, 0))).endswith("1 x 1000001")
    assert pictures.probe(io.BytesIO(blank_png(1_000_000, 1, 8, 0))) == (1, 1_000_000)


def test_a_compressed_bitmap_is_decoded():
    """Pillow reads its pixels two bytes at a time, tens of thousands of times; it cannot write such files."""
    width, height = 300, 200
    pixels = np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)
    rows = (b"".join(bytes([1, value]) for value in row) + b"\0\0" for row in pixels[::-1])  # runs of one pixel
    body = b"".join(rows) + b"\0\1"
    palette = b"".join(bytes([i, i, i, 0]) for i in range(256))
    start = 14 + 40 + len(palette)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(body), 0, 0, 256, 0)  # 1: RLE8
    data = b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + info + palette + body
    assert pictures.probe(io.BytesIO(data)) == (height, width)
    np.testing.assert_array_equal(pictures.decode(io.BytesIO(data)).pixels, np.repeat(pixels[..., None], 3, axis=2))


@pytest.mark.parametrize(("depth", "colours"), [(8, 0), (16, 0), (8, 2), (8, 6)])
def test_conversions_need_little_memory(monkeypatch, depth, colours):
    """Besides Pillow's own image: three bytes per pixel of the result, and a band."""
    monkeypatch.setattr(pictures, "BAND", 1 << 14)
    data, pixels = io.BytesIO(blank_png(1500, 1000, depth, colours)), 1_500_000
    pictures.decode(io.BytesIO(blank_png(9, 9, depth, colours)))  # plug-ins are imported
    tracemalloc.start()
    decoded = pictures.decode(data).pixels
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decoded.shape == (1000, 1500, 3)
    assert peak < 3 * pixels + 1_000_000


@pytest.mark.parametrize("band", [1, 300])
def test_bands_change_nothing(monkeypatch, band):
    for data in samples():
        expected = outcome(data, 1)
        monkeypatch.setattr(pictures, "BAND", band)
        found = outcome(data, 1)
        monkeypatch.undo()
        assert (found is None) == (expected is None)  # Pillow cannot convert LAB to RGB
        assert found is None or np.array_equal(found.pixels, expected.pixels)


EMPTY = b"\0\0\0\0prOt" + struct.pack(">I", zlib.crc32(b"prOt"))  # a chunk of a PNG


@pytest.mark.parametrize(
    "data",
    [
        b"P6" + b" " * 200_000 + b"8 8 255\n" + bytes(192),
        b"P6\n#" + b"c" * 200_000 + b"\n8 8 255\n" + bytes(192),
        b"\xff\xd8" + b"\xff" * 200_000 + encoded(picture(8), "jpeg")[2:],
        b"\xff\xd8" + b"\xff\xe5\0\2" * 50_000 + encoded(picture(8), "jpeg")[2:],
        encoded(picture(8), "png")[:33] + EMPTY * 50_000 + encoded(picture(8), "png")[33:],
        encoded(picture(8), "png")[:-12] + EMPTY * 50_000 + encoded(picture(8), "png")[-12:],
        b"GIF89a\x08\0\x08\0\0\0\0!\xfe" + (b"\xff" + b"c" * 255) * 50_000 + b"\0" + encoded(picture(8), "gif")[13:],
    ],
    ids=["spaces", "comment", "fill", "segments", "chunks", "last chunks", "blocks"],
)
def test_headers_have_a_limit(data):
    """Pillow reads them in Python, byte by byte or part by part."""

    class Counted(io.BytesIO):
        reads = 0

        def read(self, *size):
            self.reads += 1
            return super().read(*size)

    file = Counted(data)
    pictures.probe(file)
    assert 9_000 < file.reads < 25_000


def test_formats_that_start_other_programs_are_not_opened(tmp_path):
    picture(8).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    assert pictures.probe((tmp_path / "a.png").open("rb")) == "not a supported image format"
