"""List the image files of a .zip or .tar, and read them in place.

A damaged member is listed, so that opening it fails and it is reported as unreadable. Damage to the archive's own
structure is an error, because files might be missing without a word.
"""

import bz2
import gzip
import io
import lzma
import os
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast

from protonce.data import scratch
from protonce.data.listings import Listing, has_no_suffix, is_image
from protonce.data.pictures import HEAD, looks_encoded
from protonce.errors import UserError

ZIPS = (".zip",)
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MAX_MEMBERS = 20_000_000  # of an archive
MAX_MEMBER = 1 << 30  # bytes of one image file
MAX_RATIO = 100  # unpacked bytes per byte of the archive; images hardly compress,
ALWAYS_ALLOWED = 1 << 28  # but small archives of plain pixels do: bytes that any archive may unpack to
KEPT_FREE = 1 << 26  # bytes in the folder for temporary files that unpacking leaves free
MAX_LABEL = 4000  # bytes of a KEY.cls
BLOCK = 512  # bytes of a header, and of the padding, of a .tar
Opener = Callable[[Path], IO[bytes]]


def _check_expansion(path: Path, members: int, unpacked: int) -> None:
    """Refuse archives that are made to fill the memory, the disk or the day.

    Raises:
        UserError: the archive has too many members, or unpacks to too many bytes.
    """
    if members > MAX_MEMBERS:
        raise UserError(f"{path} has more than {MAX_MEMBERS:,} members; give several archives or a folder")
    if unpacked > max(ALWAYS_ALLOWED, MAX_RATIO * path.stat().st_size):
        raise UserError(
            f"{path} unpacks to more than {MAX_RATIO} times its size, as archives of images do not; "
            "if you trust it, unpack it and give the folder"
        )


def _refuse(path: Path, kind: str, error: Exception) -> UserError:
    """What to say of an archive whose structure is damaged; the libraries raise many kinds of errors for it."""
    text = " ".join(str(error).split()) or type(error).__name__
    return UserError(f"{path} cannot be read as a {kind}: {text[:200]}")


# A .zip


class _Zip:
    """Members of a .zip, which each process and thread opens separately, so that workers read in parallel."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path, self.names = path, names
        self.local = threading.local()

    def __call__(self, i: int) -> BinaryIO:
        if getattr(self.local, "process", None) != os.getpid():  # a forked worker must not share the file offset
            self.local.process, self.local.file = os.getpid(), zipfile.ZipFile(self.path)
        return io.BytesIO(_read(self.local.file, self.local.file.getinfo(self.names[i])))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Zip, (self.path, self.names)


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Content of a member, with its checksum verified. However much it unpacks to, at most its stated size is kept."""
    if info.file_size > MAX_MEMBER:
        raise OSError(f"larger than {MAX_MEMBER >> 30} GB")
    with cast(zipfile.ZipExtFile, archive.open(info)) as file:
        part = 1 << 20
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # zipfile does not tell the others when to stop, and 45 bytes of bzip2 may be 45 MB. So feed them little.
            part = file.MIN_READ_SIZE = 64
        data = b"".join(iter(lambda: file.read(part), b""))
    if len(data) != info.file_size:
        raise zipfile.BadZipFile("the size is wrong")
    return data


def list_zip(path: Path) -> Listing:
    """List the images of a .zip.

    Raises:
        UserError: its directory is damaged, or it unpacks to too much.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            stated = _stated_members(path)
            if stated is not None and stated != len(infos) % (1 << 16):
                raise zipfile.BadZipFile("its directory is damaged")
            found = {info.filename: info for info in infos if _may_be_image(archive, info)}
    except Exception as error:
        raise _refuse(path, ".zip", error) from None
    _check_expansion(path, len(infos), sum(info.file_size for info in found.values()))
    names = sorted(found)
    return Listing(
        where=f"in {path}",
        names=names,
        sizes=[found[name].file_size for name in names],
        stamps=[found[name].CRC for name in names],
        files=[f"{path.resolve()}:{name}" for name in names],
        open=_Zip(path, names),
    )


def _stated_members(path: Path) -> int | None:
    """Number of members, modulo 65,536, in the record at the end, which zipfile ignores; None: it is elsewhere."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - (1 << 16) - 22, 0))
        tail = file.read()
    count = int.from_bytes(tail[(at := tail.rfind(b"PK\5\6")) + 10 : at + 12], "little")
    return None if count == 0xFFFF else count


def _may_be_image(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
    """Whether a member is an image, or may be one whose name is damaged: names are stored twice."""
    if is_image(info.filename):
        return True
    try:
        with archive.open(info) as file:
            return has_no_suffix(info.filename) and looks_encoded(file.read(HEAD))
    except RuntimeError:  # encrypted, or an unknown compression
        return False
    except Exception:  # the names differ
        return True


# A .tar


@dataclass(frozen=True)
class _Span:
    """Position of a member in the file."""

    offset: int
    size: int
    unusable: str = ""  # the reason why the member has no content of its own


class _Tar:
    """Members of an uncompressed .tar, read in place."""

    def __init__(self, path: Path, spans: list[_Span], unpacked: Any = None) -> None:
        self.path, self.spans = path, spans
        self.unpacked = unpacked  # temporary file of a compressed archive; it lives as long as this object

    def __call__(self, i: int) -> BinaryIO:
        span = self.spans[i]
        if span.unusable or span.size > MAX_MEMBER:
            raise OSError(span.unusable or f"larger than {MAX_MEMBER >> 30} GB")
        return io.BytesIO(self.read(i, span.size))

    def read(self, i: int, size: int) -> bytes:
        """The first bytes of a member."""
        with self.path.open("rb") as file:
            file.seek(self.spans[i].offset)
            return file.read(min(size, self.spans[i].size))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Tar, (self.path, self.spans)


def list_tar(path: Path) -> Listing:
    """List the images of a .tar, compressed or not; as in webdataset, `KEY.cls` contains the label of `KEY.jpg`.

    Raises:
        UserError: it is damaged, ends early, or unpacks to too much, or there is no space to unpack it.
    """
    place, unpacked = path, None
    opener = _compression(path)
    if opener is not None:  # compressed archives have no random access
        unpacked = _unpack(path, opener)
        place = Path(unpacked.name)
    members = _members(path, place)
    names = sorted(name for name in members if is_image(name))
    silent = sorted(name for name in members if has_no_suffix(name))
    heads = _Tar(place, [members[name] for name in silent])
    names = sorted(names + [name for i, name in enumerate(silent) if looks_encoded(heads.read(i, HEAD))])
    return Listing(
        where=f"in {path}",
        names=names,
        sizes=[members[name].size for name in names],
        stamps=[path.stat().st_mtime_ns] * len(names),
        files=[f"{path.resolve()}:{name}" for name in names],
        open=_Tar(place, [members[name] for name in names], unpacked),
        labels=_labels(path, place, names, members),
    )


def _labels(path: Path, place: Path, names: list[str], members: dict[str, _Span]) -> list[str] | None:
    """The labels of a webdataset; None: it is not one."""
    keys = [f"{name[: len(name) - len(PurePosixPath(name).suffix)]}.cls" for name in names]
    if not keys or not all(key in members and not members[key].unusable for key in keys):
        return None
    long = next((key for key in keys if members[key].size > MAX_LABEL), None)
    if long is not None:
        raise UserError(
            f"the label {long} in {path} has {members[long].size:,} bytes; at most {MAX_LABEL:,} are allowed"
        )
    classes = _Tar(place, [members[key] for key in keys])
    return [classes(i).read().decode(errors="replace").strip() for i in range(len(keys))]


def _members(path: Path, place: Path) -> dict[str, _Span]:
    """Names and positions of the members that are no folders; of several with the same name the last.

    Raises:
        UserError: the archive is damaged or ends early.
    """
    members = {}
    try:
        with tarfile.open(place, "r:") as archive:
            last = -1
            for count, member in enumerate(archive):
                if member.offset <= last or member.size < 0:  # tarfile would go round in a circle
                    raise tarfile.ReadError("a header is damaged")
                last = member.offset
                if count > MAX_MEMBERS:
                    _check_expansion(path, count, 0)
                if not member.isdir():
                    reason = "" if member.isreg() and not member.issparse() else "a link or sparse file in the archive"
                    name = PurePosixPath(member.name).as_posix()  # `./a` is `a`
                    members[name] = _Span(member.offset_data, 0 if reason else member.size, reason)
            _check_end(place, archive.offset, len(members))
    except UserError:
        raise
    except Exception as error:
        if "unexpected end" in str(error) or "truncated" in str(error):  # tarfile's words
            error = EOFError("the archive ends early; copy or download it again")
        raise _refuse(path, ".tar", error) from None
    return members


def _check_end(place: Path, end: int, members: int) -> None:
    """Check that tarfile, which stops without a word at a damaged header, stopped at the end of the archive.

    The end is a block of zeros, and only zeros follow. A few programs do not write it. Such an archive cannot be told
    from one that was cut between two files, so it is refused, too.
    """
    with place.open("rb") as file:
        file.seek(end)
        block = file.read(BLOCK)
        if len(block) < BLOCK:
            raise EOFError(f"the archive ends early, after {members:,} files; copy or download it again")
        if any(block):
            raise tarfile.ReadError(f"the header at byte {end:,} is damaged; copy or download the archive again")
        while rest := file.read(1 << 20):
            if rest.count(0) != len(rest):
                raise tarfile.ReadError(
                    f"there is more after its end at byte {end:,}; it is damaged, or several archives were joined"
                )


def _compression(path: Path) -> Opener | None:
    """How to decompress a .tar, by its first bytes; None: it is not compressed."""
    with path.open("rb") as file:
        head = file.read(6)
    openers = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
    return next((cast(Opener, opener) for magic, opener in openers.items() if head.startswith(magic)), None)


def _unpack(path: Path, opener: Opener) -> IO[bytes]:
    """Decompress a .tar into a temporary file.

    Raises:
        UserError: it is damaged or ends early, unpacks to too much, or there is no space.
    """
    purpose = f"unpack {path}"
    unpacked = scratch.create(purpose, named=True)
    free = shutil.disk_usage(unpacked.name).free - KEPT_FREE
    written = 0
    try:
        with opener(path) as packed:
            while part := packed.read(1 << 20):
                written += len(part)
                _check_expansion(path, 0, written)
                if written > free:
                    raise scratch.no_space(purpose, 0, OSError(scratch.FULL[0], ""))
                _write(unpacked, part, purpose)
    except UserError:
        raise
    except EOFError:
        raise _refuse(path, ".tar", EOFError("the archive ends early; copy or download it again")) from None
    except Exception as error:
        raise _refuse(path, ".tar", error) from None
    _write(unpacked, b"", purpose)
    return unpacked


def _write(file: IO[bytes], part: bytes, purpose: str) -> None:
    try:
        file.write(part)
        file.flush()
    except OSError as error:
        raise scratch.no_space(purpose, 0, error) from None
