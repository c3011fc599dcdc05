"""Check every file of a run folder: for `protonce check`, and before a run is resumed."""

from dataclasses import dataclass, field
from pathlib import Path

from protonce import manifest
from protonce.errors import UserError
from protonce.features import is_intact
from protonce.run.encoder_file import has_encoders, snapshot_file
from protonce.run.kept_features import kept_file
from protonce.run.prototype_files import assignments_file
from protonce.run.reading import Run

REMOVABLE = ("evaluations/", "report.html", "checkpoints/")  # a person may remove these
WRITTEN_LAST = ("prototypes.npz", "encoder.json", "encoder.safetensors")  # when training ends


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
    if not (path / "config.yaml").exists():
        raise UserError(f"{path} is not a run folder: it has no config.yaml")
    found = manifest.load(path)
    checked = Checked(found.version)
    present = manifest.present(path)
    recorded = present if found.files is None else [*found.files]
    for name in sorted({*present, *recorded}):
        if "/." in name:  # the draft of an interrupted evaluation, which is made again if it is damaged
            continue
        if name not in recorded and not name.startswith("evaluations/"):
            checked.notes.append(f"{name} was not written by protonce")
        elif name not in present and name.startswith(REMOVABLE):
            checked.notes.append(f"{name} has been removed")
        elif name in present or not _is_pending(path, name):
            _check_file(path, name, checked)
    _check_features(path, checked)
    if found.version < manifest.FORMAT:
        without = ", which wrote no checksums" if found.version == 1 else ""
        checked.notes.append(f"format {found.version}, of an older version of protonce{without}")
    if not checked.damaged:
        _open(path, checked)
    return checked


def _is_pending(path: Path, name: str) -> bool:
    """Whether a missing file may not have been written yet: the process was killed just before."""
    if has_encoders(path):
        return False
    try:
        done = len(Run(path).metrics)
    except UserError:
        return False
    return name in (*WRITTEN_LAST, *(file(done + 1) for file in (assignments_file, kept_file, snapshot_file)))


def _check_file(path: Path, name: str, checked: Checked) -> None:
    try:
        manifest.read(path, name) if name in manifest.GROWING else manifest.check(path, name)
    except UserError as error:
        checked.damaged[name] = str(error)
    else:
        checked.intact.append(name)


def _check_features(path: Path, checked: Checked) -> None:
    for file in sorted((path / "features").glob("*.npy")):
        if is_intact(file):
            checked.intact.append(f"features/{file.name}")
        else:
            checked.notes.append(f"features/{file.name} is damaged, or of an older version; it will be computed again")


def _open(path: Path, checked: Checked) -> None:
    """Load what other commands load: a run of an older version has no checksums, and weights may be NaN."""
    try:
        run = Run(path)
        _ = run.images, run.metrics, run.evaluations
        if not run.finished:
            checked.notes.append("training has not finished; continue it with --resume")
        elif not run.own:
            _ = run.encoders
        if run.finished and run.has_prototypes:
            _ = run.prototypes, run.parents
    except UserError as error:
        checked.damaged[str(path)] = str(error)
