"""Create a run folder and append to its logs. Only training and importing write to a run folder."""

import json
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout

from protonce import manifest
from protonce.data.sources import Source
from protonce.errors import UserError
from protonce.files import as_bytes, csv_text

METRICS = "metrics.jsonl"
PACKAGES = ("protonce", "torch", "torchvision", "timm", "lightning-fabric", "faiss-cpu", "numpy", "pillow")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Context in which no other process can train in the run folder. The lock is released when the process dies.

    Raises:
        UserError: another process holds the lock.
    """
    path.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path / ".lock", timeout=0):
            yield
    except Timeout:
        raise UserError(
            f"another process is training in {path}; wait for it to finish, or choose another folder"
        ) from None


def create_folder(path: Path, source: Source | None, own: Mapping[str, bool], config: Mapping[str, Any]) -> None:
    """Create a run folder with images.csv, skipped.csv and, last, config.yaml.

    Args:
        path: the run folder.
        source: the training images; None for an encoder that was imported without images.
        own: whether encoder, views and system are the user's own.
        config: for config.yaml: recipe, system, and the settings as requested and as resolved.
    """
    manifest.create(path)
    names, skipped = (source.names, source.skipped) if source else ([], [])
    rows = zip(range(len(names)), names, (source and source.labels) or [""] * len(names), strict=True)
    manifest.write(path, "images.csv", csv_text(("index", "name", "label"), rows))
    manifest.write(path, "skipped.csv", csv_text(("name", "reason"), ((s.name, s.reason) for s in skipped)))
    data = {
        "source": source.place or source.spec if source else "",
        "images": len(names),
        "fingerprint": source.fingerprint if source else "",
        "identity": source.identity if source else "",
        **own,
    }
    about = {
        "format": manifest.FORMAT,  # first, so that it can be seen that there must be a manifest
        **config,
        "data": data,
        "threads": torch.get_num_threads(),
        "versions": _versions(),
        "git": _git_sha(),
    }
    manifest.write(path, "config.yaml", yaml.safe_dump(about, sort_keys=False))


def has_no_checkpoint(path: Path) -> bool:
    """Whether the run was killed before `create_folder` wrote config.yaml, so that there is nothing to resume."""
    written_before = {manifest.FILE, "images.csv", "skipped.csv"}
    return {p.name for p in path.iterdir() if not p.name.startswith(".")} <= written_before


def append_skipped(path: Path, name: str, reason: str) -> None:
    """Add a file that became unreadable during training to skipped.csv, unless it is already listed."""
    line = csv_text(("name", "reason"), [(name, reason)]).partition("\n")[2]
    if as_bytes(line) not in manifest.read(path, "skipped.csv"):
        manifest.append(path, "skipped.csv", line)  # other ranks append too


def append_metrics(path: Path, record: Mapping[str, object]) -> None:
    """Append a line to metrics.jsonl."""
    manifest.append(path, METRICS, json.dumps(_rounded(record)) + "\n")


def _rounded(value: Any) -> Any:
    """Floats with six significant digits, which keeps the log readable."""
    if isinstance(value, Mapping):
        return {name: _rounded(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def cut_metrics(path: Path, epochs: int) -> None:
    """Remove the lines of metrics.jsonl after the first `epochs` epochs, which will be trained again.

    Raises:
        UserError: the file is damaged or missing.
    """
    lines = manifest.read(path, METRICS).decode(errors="replace").splitlines() if epochs else []
    kept = [line for line in lines if _epoch_of(line) <= epochs]
    if len(kept) != epochs:
        cure = manifest.CURES[METRICS]
        raise UserError(f"{path / METRICS} has {len(kept)} of the {epochs} epochs that are done; {cure}")
    manifest.write(path, METRICS, "".join(line + "\n" for line in kept))


def _epoch_of(line: str) -> float:
    try:
        return int(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):  # a line that was being written when the run was killed
        return float("inf")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git_sha() -> str | None:
    """The commit of protonce, if it runs from a git checkout."""
    module = Path(__file__)
    try:
        tracked = ["git", "-C", str(module.parent), "ls-files", "--error-unmatch", module.name]
        subprocess.run(tracked, check=True, capture_output=True)
        head = ["git", "-C", str(module.parent), "rev-parse", "HEAD"]
        return subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
