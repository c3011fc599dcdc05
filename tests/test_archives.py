"""Damaged and hostile archives: each opens with the images that are intact, or ends in one sentence."""

import bz2
import contextlib
import errno
import gc
import gzip
import io
import lzma
import shutil
import struct
import tarfile
import tempfile
import tracemalloc
import zipfile

import numpy as np
import pytest

from conftest import _write, picture
from mutants import mutate, open_damaged
from protonce.data import archives, scratch
from protonce.data.sources import open_source
from protonce.errors import UserError

MUTANTS = 120  # of each archive
NAMES = [f"class{i // 3}/{i}.png" for i in range(5)]


def png(i, side=6):
    buffer = io.BytesIO()
    picture(side, seed=i).save(buffer, "png")
    return buffer.getvalue()


FILES = {**{name: png(i) for i, name in enumerate(NAMES)}, "notes.txt": b"no image"}


def pixels(i):
    return np.asarray(picture(6, seed=i))


def tar_bytes(files=FILES, compress=bytes):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return compress(buffer.getvalue())


def zip_bytes(files=FILES, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return buffer.getvalue()


ARCHIVES = {
    "a.zip": lambda: zip_bytes(),
    "deflated.zip": lambda: zip_bytes(compression=zipfile.ZIP_DEFLATED),
    "lzma.zip": lambda: zip_bytes(compression=zipfile.ZIP_LZMA),
    "a.tar": tar_bytes,
    "a.tgz": lambda: tar_bytes(compress=lambda data: gzip.compress(data, mtime=0)),
    "a.tbz2": lambda: tar_bytes(compress=bz2.compress),
    "a.txz": lambda: tar_bytes(compress=lzma.compress),
}


def intact_members(name, content, hit):
    """Names of the images none of whose bytes is hit; None: the format has no bytes of a single image."""
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            infos, directory = archive.infolist(), archive.start_dir
        ends = [info.header_offset for info in infos[1:]] + [directory]
        whole = []
        for info, end in zip(infos, ends, strict=True):
            length = 46 + len(info.filename)
            if not (overlap(hit, info.header_offset, end) or overlap(hit, directory, directory + length)):
                whole.append(info.filename)
            directory += length
        return whole
    if name.endswith(".tar"):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            return [m.name for m in archive if not overlap(hit, m.offset, m.offset_data + m.size)]
    return None


def overlap(hit, start, stop):
    return hit.start < stop and start < hit.stop


@pytest.mark.parametrize("name", ARCHIVES)
def test_damaged_archives(tmp_path, name):
    """No other exception than UserError, no other pixels than those that were written, nothing missing unmentioned."""
    content = ARCHIVES[name]()
    rng = np.random.default_rng(0)
    opened = 0
    for case in range(MUTANTS):
        damaged, hit = mutate(rng, content)
        source, refused = open_damaged(_write(tmp_path / name, damaged))
        assert "\n" not in refused
        assert len(refused) < 500
        if source is None:
            continue
        opened += 1
        found = {n: source.load(i) for i, n in enumerate(source.names)}
        whole = intact_members(name, content, hit)
        for i, image in enumerate(NAMES):
            checked = name.endswith(".zip") and image in found  # members of a .zip have a checksum
            if whole is None or image in whole or checked:
                assert np.array_equal(found[image], pixels(i)), (case, image)
        assert len(found) + len(source.skipped) >= len(NAMES), (case, "an image is missing without a word")
    assert opened < MUTANTS
    assert opened or name.endswith(("gz", "xz"))  # nearly every byte of these is under a checksum


def test_a_tar_cut_anywhere_is_refused(tmp_path):
    """Also between two files, where tarfile stops without a word."""
    content = tar_bytes()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        end = max(m.offset_data + 512 for m in archive)  # each member has one block of data here
    for cut in range(0, len(content), 256):
        path = _write(tmp_path / "a.tar", content[:cut])
        if cut >= end + 512:  # only padding is missing
            assert open_source(path).names == NAMES
            continue
        with pytest.raises(UserError, match=r"ends early|empty file|cannot be read as a .tar"):
            open_source(path)
    with pytest.raises(UserError, match=r"a.tar cannot be read as a .tar: the archive ends early, after 3 files"):
        open_source(_write(tmp_path / "a.tar", content[: 3 * 1024]))
    for name in ("a.tgz", "a.tbz2", "a.txz"):
        with pytest.raises(UserError, match="the archive ends early"):
            open_source(_write(tmp_path / name, ARCHIVES[name]()[:-9]))


def header(name="x.png", size=b"00000000000\0"):
    """A header of a .tar with its size field as given, and a valid checksum."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar_bytes()[:1024] + bytes(1024) + tar_bytes()[2048:], "there is more after its end at byte 1,024"),
        (tar_bytes() + tar_bytes(), "several archives were joined"),
        (tar_bytes()[:1024] + b"x" + tar_bytes()[1025:], "the header at byte 1,024 is damaged"),
        (header(size=b"\xff" * 12) + tar_bytes(), "a header is damaged"),  # a negative size: back to itself for ever
        (header(size=b"77777777777\0") + tar_bytes(), "the archive ends early"),
    ],
)
def test_damaged_tars(tmp_path, content, words):
    with pytest.raises(UserError, match=words):
        open_source(_write(tmp_path / "a.tar", content))


def entries(content):
    """Positions of the entries in the directory of a .zip."""
    found, at = [], content.find(b"PK\1\2")
    while at >= 0:
        found.append(at)
        at = content.find(b"PK\1\2", at + 1)
    return found


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (8, b"\1\0", "encrypted"),
        (10, b"\x63\0", "compression"),
        (16, b"1234", "Bad CRC-32"),
        (24, b"\1\0\0\0", "Bad CRC-32"),  # it unpacks to more than it states
        (42, b"\5\0\0\0", "Bad magic number"),
        (46, b"k", "differ"),
        (46 + len(NAMES[0]) - 1, b"x", "differ"),  # no longer the name of an image
    ],
)
def test_damaged_members_of_a_zip_are_skipped_and_listed(tmp_path, field, value, reason):
    content = bytearray(zip_bytes(compression=zipfile.ZIP_DEFLATED))
    at = entries(content)[0] + field
    content[at : at + len(value)] = value
    source = open_source(_write(tmp_path / "a.zip", content))
    assert source.names == NAMES[1:]
    (skipped,) = source.skipped
    assert reason in skipped.reason
    assert all(np.array_equal(source.load(i), pixels(int(n[-5]))) for i, n in enumerate(source.names))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c, e: c[: e[-1]], "cannot be read as a .zip"),
        (lambda c, e: c[: e[0] + 6] + b"\xff" + c[e[0] + 7 :], "cannot be read as a .zip: zip file version 25.5"),
        (lambda c, e: c[: e[1]] + b"X" + c[e[1] + 1 :], "cannot be read as a .zip: Bad magic number"),
        (lambda c, e: c[:-12] + b"\4\0" + c[-10:], "cannot be read as a .zip: its directory is damaged"),
    ],
)
def test_zips_with_a_damaged_directory(tmp_path, change, words):
    content = zip_bytes()
    with pytest.raises(UserError, match=words):
        open_source(_write(tmp_path / "a.zip", change(content, entries(content))))


@pytest.mark.parametrize("name", ["a.zip", "a.tgz", "a.tbz2", "a.txz"])
def test_bombs_are_refused_without_unpacking_them(tmp_path, monkeypatch, name):
    files = {"bomb.png": bytes(1_000_000), **FILES}
    whole = zip_bytes(files, zipfile.ZIP_DEFLATED) if name == "a.zip" else tar_bytes(files)
    compress = {"a.tgz": gzip.compress, "a.tbz2": bz2.compress, "a.txz": lzma.compress}.get(name, bytes)
    path = _write(tmp_path / name, compress(whole))
    assert open_source(path).names == NAMES
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 500_000)
    with pytest.raises(UserError, match="unpacks to more than 100 times its size"):
        open_source(path)
    monkeypatch.setattr(archives, "MAX_RATIO", 1000)
    assert open_source(path).names == NAMES
    monkeypatch.setattr(archives, "MAX_MEMBER", 900_000)
    assert open_source(path).skipped[0].reason.startswith("larger than")
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    with pytest.raises(UserError, match="more than 3 members"):
        open_source(path)


def test_the_default_limits_refuse_a_small_file_that_unpacks_to_gigabytes(tmp_path):
    content = bytearray(zip_bytes({name: bytes(1000) for name in NAMES}, zipfile.ZIP_DEFLATED))
    for at in entries(content):
        content[at + 24 : at + 28] = struct.pack("<I", 1 << 29)
    with pytest.raises(UserError, match="unpacks to more than 100 times its size"):
        open_source(_write(tmp_path / "a.zip", content))


@pytest.mark.parametrize(
    ("compression", "size", "most"),
    [
        (zipfile.ZIP_DEFLATED, 30_000_000, 5_000_000),
        (zipfile.ZIP_LZMA, 30_000_000, 15_000_000),
        (zipfile.ZIP_BZIP2, 100_000_000, 150_000_000),  # a block is 45 MB of zeros
    ],
)
def test_a_member_that_unpacks_to_more_than_it_states_is_bounded(tmp_path, compression, size, most):
    content = bytearray(zip_bytes({"bomb.png": bytes(size), **FILES}, compression))
    at = entries(content)[0]
    content[at + 24 : at + 28] = struct.pack("<I", 1000)
    path = _write(tmp_path / "a.zip", content)
    tracemalloc.start()
    source = open_source(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert source.names == NAMES
    assert peak < most
    assert [skipped.name for skipped in source.skipped] == ["bomb.png"]


def test_no_space_to_unpack(tmp_path, monkeypatch):
    path = _write(tmp_path / "a.tgz", ARCHIVES["a.tgz"]())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: usage._replace(free=archives.KEPT_FREE + 5000))
    words = "cannot unpack .*a.tgz in .*: no space left; set TMPDIR to a folder on a larger disk"
    with pytest.raises(UserError, match=words):
        open_source(path)
    monkeypatch.undo()
    assert open_source(path).names == NAMES

    class Full:
        name = str(tmp_path)

        def write(self, part):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scratch, "create", lambda *_, **__: Full())
    with pytest.raises(UserError, match=words):
        open_source(path)


def test_nothing_unpacked_is_left_behind(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    content = ARCHIVES["a.tgz"]()
    for damaged in (content, content[:-20], content[:300] + b"x" + content[301:]):
        with contextlib.suppress(UserError):
            open_source(_write(tmp_path / "a.tgz", damaged))
    gc.collect()
    assert not list((tmp_path / "tmp").iterdir())


def test_links_in_a_tar_are_listed(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, NAMES[0]
        archive.addfile(link)
    source = open_source(tmp_path / "a.tar")
    assert source.names == NAMES
    assert [(s.name, s.reason) for s in source.skipped] == [("link.png", "a link or sparse file in the archive")]


def test_labels_and_names_have_a_limit(tmp_path):
    labelled = {f"{i}.{suffix}": png(i) if suffix == "png" else b"cat" for i in range(2) for suffix in ("png", "cls")}
    assert open_source(_write(tmp_path / "a.tar", tar_bytes(labelled))).labels == ["cat", "cat"]
    for label, words in (
        (b"x" * 200_000, "the label 1.cls in .* has 200,000 bytes"),
        (b"x" * 1001, "1,001 characters"),
    ):
        with pytest.raises(UserError, match=words) as error:
            open_source(_write(tmp_path / "a.tar", tar_bytes({**labelled, "1.cls": label})))
        assert len(str(error.value)) < 500
    for name, make in (("a.tar", tar_bytes), ("a.zip", zip_bytes)):
        with pytest.raises(UserError, match=r"a name of .* has 1,104 characters, but at most 1,000 are allowed"):
            open_source(_write(tmp_path / name, make({**FILES, "y" * 1100 + ".png": png(1)})))


@pytest.mark.parametrize("name", ["a.tar", "a.zip"])
def test_images_without_a_suffix_in_an_archive(tmp_path, name):
    files = {"a": png(0), "b": png(1), "LICENSE": b"a text", "folder/README": b""}
    make = tar_bytes if name == "a.tar" else zip_bytes
    source = open_source(_write(tmp_path / name, make(files)))
    assert source.names == ["a", "b"]
    assert source.skipped == []
    assert np.array_equal(source.load(1), pixels(1))
