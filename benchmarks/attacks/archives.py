"""Damaged and malicious archives: a .zip, a .tar, and compressed ones."""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.attacks import mutations
from benchmarks.attacks.material import ARCHIVES
from benchmarks.attacks.process import Outcome
from benchmarks.attacks.results import read_npz, train_arguments
from benchmarks.attacks.stage import Stage

MEGABYTE = 1 << 20


def attack(stage: Stage) -> None:
    """Write an archive that is not as it should be, and embed its images, or train on them."""
    rng = stage.rng
    if rng.random() < 0.12:
        suffix, data, text = rng.choice(MALICIOUS)(stage)
    else:
        suffix = rng.choice(ARCHIVES)
        whole = stage.material.archive(suffix).read_bytes()
        if rng.random() < 0.15 and suffix not in (".zip", ".tar"):  # damaged inside, then compressed
            inside, text = mutations.damage(rng, stage.material.archive(".tar").read_bytes())
            data, text = _compress(suffix, inside), f"inside: {text}"
        elif suffix == ".zip" and rng.random() < 0.4:
            data, text = _targeted_zip(stage, whole)
        else:
            data, text = mutations.damage(rng, whole)
    path = stage.here / f"images{suffix}"
    path.write_bytes(data)
    stage.did(f"{path.name}: {text}")
    if rng.random() < 0.85:
        stage.material.copy("trained", stage.here / "run")
        stage.attempt("embed", "run", path.name, "--out", "x.npz", right=lambda o: _as_written(stage, suffix, data, o))
    else:
        arguments = ["train", path.name, *train_arguments(stage.material, "--out", "new", "--epochs", "1")[2:]]
        stage.attempt(*arguments, right=lambda _: finished(stage.here / "new"))


def finished(run: Path) -> str | None:
    """What a run lacks that exit code 0 promises."""
    lacking = [name for name in ("encoder.safetensors", "prototypes.npz", "images.csv") if not (run / name).is_file()]
    return f"exit code 0, but no {lacking[0]}" if lacking else None


def _as_written(stage: Stage, suffix: str, data: bytes, outcome: Outcome) -> str | None:
    """Each image has the features of its undamaged bytes, or its own checksum does not cover it, or it is said."""
    found = read_npz(stage.here / "x.npz")
    expected = stage.material.expected("trained", "embed")
    rows = dict(zip(expected["name"].tolist(), expected["features"], strict=True))
    names = found["name"].tolist()
    said = "could not be read" in outcome.out or "skipped" in outcome.out + outcome.err
    for name, row in zip(names, found["features"], strict=True):
        if name in rows and not np.allclose(row, rows[name], atol=1e-4) and not _unprotected(suffix, data):
            return f"{name} has other features"
    lacking = [name for name in rows if name not in names]
    if lacking and not said and not _whole(suffix, data):
        return f"{len(lacking)} of {len(rows)} images are missing without a word"
    return None


def _unprotected(suffix: str, data: bytes) -> bool:
    """Whether nobody can tell: a .tar has no checksum of its content, nor has one that was compressed afterwards."""
    if suffix == ".tar":
        return True
    if suffix == ".zip":
        return False
    return _decompressed(suffix, data) is not None


def _whole(suffix: str, data: bytes) -> bool:
    """Whether the archive is whole as far as anyone can tell, with other names in it or other members."""
    if suffix == ".zip":
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                return len(archive.infolist()) <= 10 and archive.testzip() is None
        except Exception:
            return False
    inside = data if suffix == ".tar" else _decompressed(suffix, data)
    return inside is not None and _whole_tar(inside)


def _whole_tar(data: bytes) -> bool:
    """Whether a .tar reads up to its end mark with every header's checksum right."""
    at = 0
    while at + 512 <= len(data):
        block = data[at : at + 512]
        if block == bytes(512):
            return data[at + 512 : at + 1024] == bytes(512)
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError:
            return False
        at += 512 + -(-member.size // 512) * 512
    return False


def _decompressed(suffix: str, data: bytes) -> bytes | None:
    opened: dict[str, Callable[[bytes], bytes]] = {
        ".tgz": gzip.decompress,
        ".tbz2": bz2.decompress,
        ".txz": lzma.decompress,
    }
    try:
        return opened[suffix](data)
    except Exception:
        return None


def _compress(suffix: str, data: bytes) -> bytes:
    return {".tgz": gzip.compress, ".tbz2": bz2.compress, ".txz": lzma.compress}[suffix](data)


def _targeted_zip(stage: Stage, whole: bytes) -> tuple[bytes, str]:
    """A field of a local header, of the directory or of the end record has another value."""
    rng, found = stage.rng, bytearray(whole)
    kind, fields = rng.choice(
        [
            (b"PK\x03\x04", {"version": 4, "flags": 6, "method": 8, "crc": 14, "size": 18, "length": 22, "name": 26}),
            (b"PK\x01\x02", {"needs": 6, "flags": 8, "method": 10, "crc": 16, "size": 20, "length": 24, "name": 28}),
            (b"PK\x01\x02", {"extra": 30, "comment": 32, "disk": 34, "mode": 38, "offset": 42, "letters": 46}),
            (b"PK\x05\x06", {"disk": 4, "entries": 8, "all": 10, "bytes": 12, "start": 16, "comment": 20}),
        ]
    )
    starts = [i for i in range(len(whole)) if whole[i : i + 4] == kind]
    name = rng.choice(sorted(fields))
    at = rng.choice(starts) + fields[name]
    value = rng.choice([0, 1, 6, 8, 9, 12, 14, 93, 99, 0xFFFF, 0x7FFF, rng.randrange(65536)])
    found[at : at + 2] = struct.pack("<H", value)
    return bytes(found), f"{kind[2:].hex()} {name} at {at} is {value}"


# Archives that were made to harm


def _members(stage: Stage) -> dict[str, bytes]:
    others = stage.material.others
    return {p.relative_to(others).as_posix(): p.read_bytes() for p in sorted(others.rglob("*.png"))}


def _zip(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def _zip_bomb(stage: Stage) -> tuple[str, bytes, str]:
    """Many names of the same two compressed gigabytes: the entries of the directory overlap."""
    count, size = stage.rng.choice([1, 20, 2000]), stage.rng.choice([50, 500, 2000]) * MEGABYTE
    suffix = stage.rng.choice([".png", ".ppm", ".bmp"])
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = {".png": b"", ".ppm": b"P6 ", ".bmp": b"BM"}[suffix]
    block = (b" " if suffix == ".ppm" else b"\0") * MEGABYTE
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)  # stands for itself, so it may be repeated
    body = first + again * (size // MEGABYTE) + packer.flush()
    crc = zlib.crc32(head)
    for _ in range(size // MEGABYTE):
        crc = zlib.crc32(block, crc)
    name = b"0000.xyz"[:-4] + suffix.encode()
    common = (20, 0, 8, 0, 33, crc, len(body), size + len(head), len(name), 0)
    data = struct.pack("<4s5H3L2H", b"PK\x03\x04", *common) + name + body
    directory = b""
    for i in range(count):
        each = b"%04d" % i + suffix.encode()
        directory += struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, *common, 0, 0, 0, 0, 0) + each
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(directory), len(data), 0)
    text = f"a bomb of {len(data + directory)} bytes: {count} {suffix} of {size >> 20} MB each"
    return ".zip", data + directory + end, text


def _tar_bomb(stage: Stage) -> tuple[str, bytes, str]:
    size, suffix = stage.rng.choice([200, 1500, 6000]) * MEGABYTE, stage.rng.choice([".tgz", ".txz", ".tbz2"])
    info = tarfile.TarInfo("zeros.png")
    info.size = size
    zeros = _compress(suffix, bytes(MEGABYTE))  # what is compressed in parts may be joined
    data = _compress(suffix, info.tobuf()) + zeros * (size // MEGABYTE) + _compress(suffix, bytes(1024))
    return suffix, data, f"a bomb of {len(data)} bytes: {size >> 20} MB"


def _many_members(stage: Stage) -> tuple[str, bytes, str]:
    count = stage.rng.choice([20_000, 60_000])
    return ".zip", _zip([(f"{i}.png", b"") for i in range(count)]), f"{count} empty members"


def _same_names(stage: Stage) -> tuple[str, bytes, str]:
    members = list(_members(stage).items())
    twice = [*members, *[(name, data[::-1]) for name, data in members[:3]]]
    if stage.rng.random() < 0.5:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ".zip", _zip(twice), "three names twice, the second time with other bytes"
    return ".tar", _tar(twice), "three names twice, the second time with other bytes"


def _tar(members: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _odd_names(stage: Stage) -> tuple[str, bytes, str]:
    prefix = stage.rng.choice(["/", "../../", "//", "./", "a/../", "C:\\", "x" * 3000 + "/", "a\nb/", "-", "=1+1|"])
    members = [(prefix + name, data) for name, data in _members(stage).items()]
    members += list(_members(stage).items())
    make, suffix = stage.rng.choice([(_zip, ".zip"), (_tar, ".tar")])
    return suffix, make(members), f"names begin with {prefix[:20]!r}"


def _special_members(stage: Stage) -> tuple[str, bytes, str]:
    """Links, devices and FIFOs that are called like images."""
    buffer = io.BytesIO()
    kinds = {"link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE, "FIFO": tarfile.FIFOTYPE, "device": tarfile.CHRTYPE}
    kind = stage.rng.choice(sorted(kinds))
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in _members(stage).items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        info = tarfile.TarInfo("special.png")
        info.type, info.linkname = kinds[kind], stage.rng.choice(["/etc/passwd", "/dev/zero", "special.png", "../x"])
        archive.addfile(info)
    return ".tar", buffer.getvalue(), f"a {kind} to {info.linkname}"


def _huge_label(stage: Stage) -> tuple[str, bytes, str]:
    size = stage.rng.choice([1000, 200_000, 50_000_000])
    members = []
    for name, data in _members(stage).items():
        members += [(name, data), (name.replace(".png", ".cls"), b"x" * size if name.endswith("0.png") else b"b")]
    return ".tar", _tar(members), f"a label of {size} bytes"


def _declared(stage: Stage) -> tuple[str, bytes, str]:
    """A header that promises more than the archive has."""
    size = stage.rng.choice([10**6, 10**10, 8**11 - 1])
    info = tarfile.TarInfo("large.png")
    info.size = size
    data = _tar(list(_members(stage).items()))[:-1024].rstrip(b"\0")
    data += bytes(-len(data) % 512) + info.tobuf() + bytes(1024)
    return ".tar", data, f"the last member says that it has {size} bytes"


MALICIOUS: list[Callable[[Stage], tuple[str, bytes, str]]] = [
    *(_zip_bomb, _tar_bomb, _many_members, _same_names, _odd_names, _special_members, _huge_label, _declared)
]
