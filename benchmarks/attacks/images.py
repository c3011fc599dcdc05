"""Mutants of images of every format: each is used, or skipped and listed, and memory stays bounded."""

import csv
import io
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.attacks import mutations
from benchmarks.attacks.archives import finished
from benchmarks.attacks.process import Outcome
from benchmarks.attacks.results import read_npz, train_arguments
from benchmarks.attacks.stage import Stage

FORMATS = {
    ".jpg": ("JPEG", "RGB"),
    ".png": ("PNG", "RGBA"),
    ".gif": ("GIF", "P"),
    ".bmp": ("BMP", "RGB"),
    ".tif": ("TIFF", "RGB"),
    ".webp": ("WEBP", "RGB"),
    ".ppm": ("PPM", "RGB"),
}
MUTANTS = 40  # in one case
ROOM = 3 << 29  # bytes


def attack(stage: Stage) -> None:
    """Embed a folder of ten images and some mutants, or train on it: the ten are as they were, the rest is listed."""
    rng = stage.rng
    data = stage.here / "data"
    shutil.copytree(stage.material.others, data)
    if rng.random() < 0.3:
        stage.did(rng.choice(HUGE)(stage, data / "kind0" / "mutant"))
    else:
        suffix = rng.choice(sorted(FORMATS))
        whole = _encoded(stage, suffix)
        for i in range(MUTANTS):
            mutant, text = mutations.damage(rng, whole)
            (data / "kind0" / f"mutant{i}{suffix}").write_bytes(mutant)
        stage.did(f"{MUTANTS} mutants of a {suffix} of {len(whole)} bytes, the last {text}")
    material = stage.material
    if rng.random() < 0.7:
        material.copy("trained", stage.here / "run")
        stage.attempt(
            "embed", "run", "data", "--out", "x.npz", right=lambda o: _used_or_said(stage, data, o), room=ROOM
        )
        return
    arguments = ["train", "data", *train_arguments(material, "--out", "new", "--epochs", "1")[2:]]
    stage.attempt(*arguments, right=lambda _: _used_or_listed(stage, data), refuse=False, room=ROOM)


def _encoded(stage: Stage, suffix: str) -> bytes:
    """A small picture in a format, with some of its options."""
    rng, (kind, mode) = stage.rng, FORMATS[suffix]
    side = rng.choice([8, 24, 60])
    pixels = np.random.default_rng(rng.randrange(10**6)).integers(0, 256, (side, side, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(rng.choice([mode, mode, "L"]))
    options: dict[str, object] = {}
    if suffix == ".jpg":
        exif = Image.Exif()
        exif[0x0112] = rng.randrange(1, 9)
        options = {"progressive": rng.random() < 0.5, "exif": exif}
    elif suffix == ".tif":
        options = {"compression": rng.choice([None, "tiff_lzw", "tiff_deflate", "packbits", "jpeg"])}
        image = image.convert("RGB")
    elif suffix in (".gif", ".png") and rng.random() < 0.3:
        options = {"save_all": True, "append_images": [image.rotate(90)]}
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _files(data: Path) -> list[str]:
    return sorted(p.relative_to(data).as_posix() for p in data.rglob("*") if p.is_file())


def _used_or_said(stage: Stage, data: Path, outcome: Outcome) -> str | None:
    found = read_npz(stage.here / "x.npz")
    rows = found["name"].tolist()
    for name in stage.material.expected("trained", "embed")["name"].tolist():
        if name not in rows:  # its features may differ a little: small images are resized to the largest side of all
            return f"{name} is missing"
    if not np.isfinite(found["features"]).all():
        return "features that are not finite"
    lacking = len(_files(data)) - len(rows)
    if lacking and f"{lacking} file" not in outcome.out.replace(",", "") and "could not be read" not in outcome.out:
        return f"{lacking} files are missing without a word"
    return None


def _used_or_listed(stage: Stage, data: Path) -> str | None:
    run = stage.here / "new"
    listed: list[str] = []
    for table in ("images.csv", "skipped.csv"):
        with (run / table).open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            listed += [row["name"] for row in csv.DictReader(file)]
    if sorted(listed) != _files(data):
        odd = {*listed} ^ {*_files(data)} or {name for name in listed if listed.count(name) > 1}
        return f"neither used nor skipped, or both: {sorted(odd)[:3]}"
    return finished(run)


# Images that need more memory than a machine has


def png(width: int, height: int, depth: int, colour: int, rows: int, chunks: bytes = b"") -> bytes:
    """A PNG of zeros of this size, of which `rows` rows are there."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    row = 1 + (width * channels * depth + 7) // 8
    packer = zlib.compressobj(1)
    body, left = [], row * rows
    zeros = bytes(1 << 20)
    while left > 0:
        body.append(packer.compress(zeros[: min(left, len(zeros))]))
        left -= len(zeros)
    body.append(packer.flush())
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    palette = chunk(b"PLTE", bytes(6)) if colour == 3 else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + palette
        + chunks
        + chunk(b"IDAT", b"".join(body))
        + chunk(b"IEND", b"")
    )


def _huge_png(stage: Stage, path: Path) -> str:
    width, height = stage.rng.choice(
        [
            (178_000_000, 1),
            (1, 178_000_000),
            (13_300, 13_300),
            (2**31 - 1, 1),
            (100_000, 1_700),
            (5_000, 5_000),
            (2**31 - 1, 2**31 - 1),
        ]
    )
    depth, colour = stage.rng.choice([(8, 2), (16, 0), (16, 2), (8, 6), (1, 0), (8, 3), (16, 6), (8, 4)])
    need = width * height * depth // 8 * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    rows = height if need < 1 << 29 else min(height, 3)
    if width * depth > 1 << 33:
        rows = 0
    path.with_suffix(".png").write_bytes(png(width, height, depth, colour, rows))
    return f"a PNG of {width} x {height}, {depth} bits, colour type {colour}, {rows} rows there"


def _huge_header(stage: Stage, path: Path) -> str:
    """A head that says it is large, in formats whose files may be short."""
    rng = stage.rng
    suffix = rng.choice([".ppm", ".bmp", ".gif", ".tif", ".jpg", ".webp", ".pgm"])
    width, height = rng.choice([(65_535, 65_535), (2**31 - 1, 1), (1, 2**31 - 1), (65_535, 2_700), (0, 0), (0, 5)])
    if suffix in (".ppm", ".pgm"):
        top = rng.choice([1, 255, 65_535, 65_536])
        data = b"P%d %d %d %d\n" % (6 if suffix == ".ppm" else 5, width, height, top) + bytes(100)
    elif suffix == ".bmp":
        data = (
            b"BM"
            + struct.pack("<IHHIIiiHHIIiiII", 154, 0, 0, 54, 40, width, height, 1, 24, 0, 100, 0, 0, 0, 0)
            + bytes(100)
        )
    else:
        data = bytearray(_encoded(stage, {".pgm": ".ppm"}.get(suffix, suffix)))
        if suffix == ".gif":
            data[6:10] = struct.pack("<HH", min(width, 65535), min(height, 65535))
        elif suffix == ".jpg":
            at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
            data[at + 5 : at + 9] = struct.pack(">HH", min(height, 65535), min(width, 65535))
        elif suffix == ".tif":
            for tag, value in ((256, width), (257, height)):
                at = bytes(data).find(struct.pack("<HH", tag, 3))
                at = at if at >= 0 else bytes(data).find(struct.pack("<HH", tag, 4))
                if at >= 0:
                    data[at + 2 : at + 12] = struct.pack("<HII", 4, 1, value)
        else:
            data[20:30] = bytes(stage.rng.randbytes(10))
    path.with_suffix(suffix).write_bytes(bytes(data))
    return f"a {suffix} that says it is {width} x {height}"


def _large_text(stage: Stage, path: Path) -> str:
    """A PNG with a text or a profile that unpacks to much more."""
    size = stage.rng.choice([1, 60, 500]) << 20
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()
    kind = stage.rng.choice([b"zTXt", b"iCCP", b"iTXt"])
    content = {b"zTXt": b"a\0\0", b"iCCP": b"a\0\0", b"iTXt": b"a\0\1\0\0\0"}[kind] + body
    chunk = struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    path.with_suffix(".png").write_bytes(png(20, 20, 8, 2, 20, chunk))
    return f"a PNG with a {kind.decode()} of {size >> 20} MB"


def _frames(stage: Stage, path: Path) -> str:
    """An animation of very many frames."""
    count = stage.rng.choice([100, 3000])
    frame = Image.new("P", (300, 300))
    path.with_suffix(".gif").parent.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    frame.save(buffer, "GIF")
    whole = buffer.getvalue()
    at = whole.index(b",", 13)
    path.with_suffix(".gif").write_bytes(whole[:at] + whole[at:-1] * count + whole[-1:])
    return f"a GIF of {count} frames"


HUGE: list[Callable[[Stage, Path], str]] = [_huge_png, _huge_png, _huge_header, _huge_header, _large_text, _frames]
