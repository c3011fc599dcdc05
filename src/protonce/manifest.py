"""manifest.json: size and SHA-256 of every file of a run folder, so that what is read is what was written.

A file is recorded before it is written, together with the content that it has until then. So whenever a process is
killed, every file has a recorded content, or is missing. Files in `features/` and `logs/` are not recorded: the former
carry their own checksum, the latter are only read by the tools that they are for.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from protonce.errors import UserError
from protonce.files import as_bytes, write_whole

FILE = "manifest.json"
FORMAT = 7  # of run folders; 1 has no manifest, 2 to 6 other settings (see run/migration.py)
GROWING = ("metrics.jsonl", "skipped.csv")  # files that lines are appended to
UNRECORDED = ("features", "logs", "tensorboard")  # the last of format 5
RESTORE = "restore it from a copy; `protonce check` lists what is intact"
CURES = {  # for a damaged file, by the beginning of its name
    "checkpoints/": "remove it to start the run at its beginning",
    "metrics.jsonl": "restore it from a copy, or remove checkpoints/ to train the run from its beginning",
    "evaluations/": "delete it, or evaluate again",
    "report.html": "delete it, or write it again with `protonce report`",
}


@dataclass(frozen=True)
class Content:
    """Size and checksum of a file."""

    size: int
    sha256: str


Files = dict[str, list[Content]]  # by name: the content that was written last, and the one that it replaced


def create(run: Path) -> None:
    """Create the folder of a new run, with a manifest that lists no files."""
    run.mkdir(parents=True, exist_ok=True)
    _save(run, FORMAT, {})


def write(run: Path, name: str, data: bytes | str) -> None:
    """Write a file of a run folder atomically, and record it.

    Raises:
        UserError: the run folder has been removed, or its manifest is damaged.
    """
    content = as_bytes(data)
    with _changing(run) as (version, files):
        files[name] = [_content(content), *_on_disk(run, name, files.get(name, []))]
        _save(run, version, files)
        write_whole(run / name, content)


def append(run: Path, name: str, text: str) -> None:
    """Append to a file of a run folder, and record it.

    Killed in between, the end of the file is not recorded: `read` ignores it, and the next call overwrites it.
    """
    with _changing(run) as (version, files):
        before = read(run, name) if name in files else b""
        path = run / name
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(len(before))
            file.truncate()
            file.write(as_bytes(text))
            file.flush()
            os.fsync(file.fileno())
        files[name] = [_content(before + as_bytes(text))]
        _save(run, version, files)


def remove(run: Path, *names: str) -> None:
    """Remove files of a run folder that are no longer needed."""
    with _changing(run) as (version, files):
        for name in names:
            (run / name).unlink(missing_ok=True)
        kept = {name: contents for name, contents in files.items() if name not in names}
        if len(kept) < len(files):
            _save(run, version, kept)


def check_writable(run: Path) -> None:
    """Check that results can be saved, before they are computed.

    Raises:
        UserError: the run folder is read-only.
    """
    if not os.access(run, os.W_OK):
        raise UserError(f"{run} cannot be written to; copy the run folder, or get permission to write to it")


def read(run: Path, name: str) -> bytes:
    """Content of a file of a run folder.

    Args:
        run: the run folder.
        name: of the file, relative to it.

    Raises:
        UserError: the file is missing, or is not what was written.
    """
    while True:
        files = load(run).files
        with _open(run, name) as file:
            data = file.read()
        if files is None:
            return data
        found = _recorded(name, data, files.get(name, []))
        if found is not None:
            return data[: found.size]
        if load(run).files == files:  # else another process has written in between
            raise _damaged(run, name, len(data), files)


def check(run: Path, name: str) -> str:
    """Check a file of a run folder without holding it in memory; return its SHA-256 in hexadecimal.

    Raises:
        UserError: as for `read`.
    """
    while True:
        files = load(run).files
        with _open(run, name) as file:
            found = Content(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())
        if files is None or found in files.get(name, []):
            return found.sha256
        if load(run).files == files:  # else another process has written in between
            raise _damaged(run, name, found.size, files)


@contextlib.contextmanager
def _open(run: Path, name: str) -> Iterator[io.BufferedReader]:
    path = run / name
    try:
        if path.exists() and not path.is_file():  # opening a FIFO would wait for ever
            raise UserError(f"{path} is not a file; {_cure(name)}")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise UserError(f"{path} {what}; {_cure(name)}") from None


def _cure(name: str) -> str:
    return next((cure for start, cure in CURES.items() if name.startswith(start)), RESTORE)


@contextlib.contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Context in which a file is parsed; each reader raises its own kinds of errors for a damaged file.

    Only a run of an older version, which has no checksums, can raise them.

    Raises:
        UserError: the file is damaged.
    """
    try:
        yield
    except UserError:
        raise
    except Exception:
        raise UserError(f"{path} is damaged, or was not written by protonce; {RESTORE}") from None


def is_recorded(run: Path, name: str) -> bool:
    """Whether a file was written, even if it is missing now."""
    files = load(run).files
    return (run / name).exists() if files is None else name in files


@dataclass(frozen=True)
class Manifest:
    """Content of a manifest."""

    version: int  # format of the run folder
    files: Files | None  # None: an older version of protonce wrote the run, and recorded nothing


def load(run: Path) -> Manifest:
    """Read the manifest of a run folder.

    Raises:
        UserError: it is damaged, missing, or of a newer version.
    """
    path = run / FILE
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a file")
        found = json.loads(path.read_bytes())
        version, listed = int(found["format"]), found["files"]
        if version <= FORMAT and found["sha256"] != _own_digest(version, listed):
            raise ValueError("a checksum that is not its own")
        files = {name: [Content(**content) for content in listed[name]] for name in listed}
    except FileNotFoundError:
        if _has_format(run):
            raise UserError(f"{path} is missing, so that nothing can be checked; {RESTORE}") from None
        return Manifest(1, None)
    except Exception:  # it may be anything
        raise UserError(f"{path} is damaged; {RESTORE}") from None
    if version > FORMAT:
        raise UserError(f"{run} was written by a newer version of protonce; upgrade protonce to open it")
    return Manifest(version, files)


def _has_format(run: Path) -> bool:
    """Whether config.yaml was written together with a manifest."""
    try:
        with _open(run, "config.yaml") as file:
            return file.read(7) == b"format:"
    except UserError:
        return False


@contextlib.contextmanager
def _changing(run: Path) -> Iterator[tuple[int, Files]]:
    """Lock the manifest, and give its format and files to change.

    The files of a run of an older version are recorded as they are.
    """
    if not run.is_dir():
        raise UserError(f"{run} has been removed; nothing more is written to it")
    shared = run.stat().st_mode & 0o066  # whoever may write to the folder may take the lock
    with FileLock(run / ".manifest.lock", mode=0o600 | shared):
        found = load(run)
        if found.files is None and not (run / "config.yaml").exists():
            raise UserError(f"{run} is no longer a run folder; nothing more is written to it")
        yield found.version, _record_all(run) if found.files is None else found.files


def _record_all(run: Path) -> Files:
    return {name: [_content((run / name).read_bytes())] for name in present(run)}


def present(run: Path) -> list[str]:
    """Names of the files in a run folder that are, or could be, recorded."""
    found = (path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file())
    hidden = (name for name in found if not any(part.startswith(".") for part in name.parts))
    return [name.as_posix() for name in hidden if name.parts[0] not in (*UNRECORDED, FILE)]


def _save(run: Path, version: int, files: Files) -> None:
    listed = {name: [asdict(content) for content in files[name]] for name in sorted(files)}
    found = {"format": version, "files": listed, "sha256": _own_digest(version, listed)}
    write_whole(run / FILE, json.dumps(found, indent=1) + "\n")


def _own_digest(version: int, listed: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([version, listed], sort_keys=True).encode()).hexdigest()


def _on_disk(run: Path, name: str, recorded: list[Content]) -> list[Content]:
    """The recorded content that the file has; none if it has another, or is missing."""
    if not recorded or not (run / name).is_file():
        return []
    found = _recorded(name, (run / name).read_bytes(), recorded)
    return [] if found is None else [found]


def _recorded(name: str, data: bytes, recorded: list[Content]) -> Content | None:
    """The recorded content that the data has; lines may have been appended to a growing file since."""
    parts = ((content, data[: content.size] if name in GROWING else data) for content in recorded)
    return next((content for content, part in parts if _content(part) == content), None)


def _content(data: bytes) -> Content:
    return Content(len(data), hashlib.sha256(data).hexdigest())


def _damaged(run: Path, name: str, size: int, files: Files) -> UserError:
    recorded: list[Any] = files.get(name, [])
    if not recorded:
        why = f"{FILE} does not list it"
    elif name not in GROWING and size != recorded[0].size:
        why = f"it has {size:,} bytes instead of {recorded[0].size:,}"
    else:
        why = "its content has changed"
    return UserError(f"{run / name} is not what protonce wrote: {why}; {_cure(name)}")
