"""Check every file of a run folder, for `protonce check`."""

from dataclasses import dataclass, field
from pathlib import Path

from protonce import manifest
from protonce.errors import UserError
from protonce.features import is_intact
from protonce.run.encoder_file import WEIGHTS
from protonce.run.reading import Run

OPTIONAL = ("evaluations/", "report.html")  # a person may remove these


@dataclass
class Checked:
    """What was found in a run folder."""

    version: int  # format of the folder
    intact: list[str] = field(default_factory=list)  # names of files
    damaged: dict[str, str] = field(default_factory=dict)  # what is wrong, by name
    notes: list[str] = field(default_factory=list)


def check_run(path: Path) -> Checked:
    """Compare every file with the manifest, and load settings, weights and prototypes.

    Raises:
        UserError: it is not a run folder, or its manifest is damaged.
    """
    found = manifest.load(path)
    if found.files is None and not (path / "config.yaml").exists():
        raise UserError(f"{path} is not a run folder: it has no config.yaml")
    checked = Checked(found.version)
    unlisted = [name for name in manifest.present(path) if found.files is not None and name not in found.files]
    for name in sorted({*manifest.present(path), *(found.files or ())}):
        _check_file(path, name, name in unlisted, checked)
    for file in sorted((path / "features").glob("*.npy")):
        if is_intact(file):
            checked.intact.append(f"features/{file.name}")
        else:
            checked.notes.append(f"features/{file.name} is damaged; it will be computed again")
    if found.version < manifest.FORMAT:
        checked.notes.append(f"format {found.version}, of an older version of protonce, which wrote no checksums")
    if not checked.damaged:
        _open(path, checked)
    return checked


def _check_file(path: Path, name: str, is_unlisted: bool, checked: Checked) -> None:
    if is_unlisted and not name.startswith("evaluations/"):
        checked.notes.append(f"{name} was not written by protonce")
        return
    if not (path / name).exists() and name.startswith(OPTIONAL):
        checked.notes.append(f"{name} has been removed")
        return
    if not (path / name).exists() and not (path / WEIGHTS).exists():
        checked.notes.append(f"{name} is not written yet, or has been removed")
        return
    try:
        manifest.read(path, name) if name in manifest.GROWING else manifest.check(path, name)
    except UserError as error:
        checked.damaged[name] = str(error)
    else:
        checked.intact.append(name)


def _open(path: Path, checked: Checked) -> None:
    """Load what other commands load: a run of an older version has no checksums, and weights may be NaN."""
    try:
        run = Run(path)
        run.images, run.metrics, run.evaluations  # noqa: B018
        if not run.finished:
            checked.notes.append("training has not finished; continue it with --resume")
        elif not run.own:
            run.encoders  # noqa: B018
        if run.finished and run.has_prototypes:
            run.prototypes, run.parents  # noqa: B018
    except UserError as error:
        checked.damaged[str(path)] = str(error)
