"""What the attacks damage copies of: small images, archives of them, and runs that were trained on them."""

import atexit
import gc
import importlib
import os
import pickle
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.attacks import process
from benchmarks.attacks.results import COMMANDS, Command

SETTINGS = (  # a training that takes a tenth of a second
    *("--recipe", "small-v2", "--backbone", "resnet10t", "--width", "4", "--dim", "16", "--image-size", "16"),
    *("--clusters", "2,4", "--batch-size", "8", "--warmup-epochs", "1", "--device", "cpu", "--no-report"),
)
EPOCHS = ("--epochs", "2")
EARLY = (
    "protonce.api",
    "protonce.evaluate.protocols",
    "protonce.embedding",
    "protonce.importing",
    "faiss",
    "pyarrow.parquet",
)
MOMENT = 1_700_000_000
RUNS = ("trained", "second", "interrupted", "imported")
ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz")


@dataclass(frozen=True)
class Material:
    """Folders of images and of runs, and the results of the commands with undamaged ones."""

    folder: Path

    @property
    def photos(self) -> Path:
        """The images the runs were trained on: 16, of two classes."""
        return self.folder / "photos"

    @property
    def others(self) -> Path:
        """Ten images to embed."""
        return self.folder / "others"

    @property
    def many(self) -> Path:
        """300 names of the photos: their features take several pages of a disk."""
        return self.folder / "many"

    def archive(self, suffix: str) -> Path:
        """An archive of `others`."""
        return self.folder / f"others{suffix}"

    def run(self, name: str) -> Path:
        """A run folder; no case writes to it."""
        return self.folder / name

    def expected(self, name: str, command: str) -> Any:
        """The result of a command with an undamaged run: of a file, once it has been needed."""
        kept = self.folder / f"{name} {command}.pickle"
        if not kept.exists():
            found = _expect(self, name, COMMANDS[command])
            part = kept.with_suffix(f".{os.getpid()}")
            part.write_bytes(pickle.dumps(found))
            part.replace(kept)
        return pickle.loads(kept.read_bytes())

    def copy(self, name: str, place: Path) -> Path:
        """A copy of a run."""
        return Path(shutil.copytree(self.run(name), place, symlinks=True))


def build(folder: Path, commands: Collection[str] = tuple(COMMANDS)) -> Material:
    """Draw the images and train the runs; import into this process what their commands imported into theirs.

    Args:
        folder: to create.
        commands: those whose results are needed.
    """
    for module in EARLY:
        _import(module)
    gc.collect()
    gc.freeze()  # else each fork would copy the pages of every object
    material = Material(folder)
    rng = np.random.default_rng(0)
    for part, each in ((material.photos, 8), (material.others, 5)):
        for kind in range(2):
            (part / f"kind{kind}").mkdir(parents=True)
            for i in range(each):
                Image.fromarray(stripes(rng, kind + 1)).save(part / f"kind{kind}" / f"{i}.png")
    material.many.mkdir()
    photos = sorted(material.photos.rglob("*.png"))
    for i in range(300):
        os.link(photos[i % len(photos)], material.many / f"{i}.png")
    for path in folder.rglob("*"):
        os.utime(path, (MOMENT, MOMENT))  # so that the archives and the identity of the images are always the same
    _pack(material)
    for name, more in (
        ("trained", EPOCHS),
        ("second", (*EPOCHS, "--seed", "1")),
        ("whole", ("--epochs", "3", "--checkpoint-minutes", "0")),
    ):
        _must(folder, "train", "photos", "--out", name, *SETTINGS, *more)
    _interrupt(folder)
    _must(folder, "import", "trained", "--out", "imported", "--data", "photos")
    for protocol in ("knn", "clustering"):
        _must(folder, "evaluate", "trained", protocol)
    _must(folder, "embed", "trained", "others", "--out", "x.npz")
    for name in RUNS:
        for command in COMMANDS.values():
            if name in command.runs and command.name in commands:
                material.expected(name, command.name)
    for module in (folder / "modules").read_text().split():
        _import(module)
    return material


def stripes(rng: np.random.Generator, slope: int, side: int = 20) -> np.ndarray:
    """A small picture of stripes: its class is their direction; (side, side, 3)."""
    y, x = np.mgrid[:side, :side]
    wave = np.sin((x * slope + y * (3 - slope)) * 0.7 + rng.uniform(0, 6)) * 90 + 128
    return (wave[..., None] + rng.normal(0, 20, (side, side, 3))).clip(0, 255).astype(np.uint8)


def _pack(material: Material) -> None:
    files = sorted(p for p in material.others.rglob("*") if p.is_file())
    with zipfile.ZipFile(material.archive(".zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, file.relative_to(material.others))
    for suffix in ARCHIVES[1:]:
        with tarfile.open(material.archive(suffix), f"w:{suffix.removeprefix('.t').removeprefix('ar')}") as tar:
            for file in files:
                tar.add(file, file.relative_to(material.others))


def _must(folder: Path, *arguments: str) -> None:
    """Run a command that has to succeed, and remember the modules it imports."""

    def remember() -> None:
        (folder / "modules").write_text("\n".join(sys.modules))

    outcome = process.run(arguments, folder, seconds=300, before=lambda: atexit.register(remember))
    if outcome.code != 0:
        raise RuntimeError(f"{outcome.command} ends with {outcome.code}:\n{outcome.err[-3000:]}")


def _interrupt(folder: Path) -> None:
    """A run of three epochs, interrupted in the middle of the last."""
    steps = 2

    def interrupt_last_epoch() -> None:
        from protonce import checkpoints

        save = checkpoints.save

        def save_and_stop(place: Path, done: int, parts: dict[str, Any], epoch: Any = None) -> None:
            save(place, done, parts, epoch)
            if done == 2 and epoch is not None and epoch.step == steps - 1:
                raise KeyboardInterrupt

        checkpoints.save = save_and_stop

    arguments = ("train", "photos", "--out", "interrupted", *SETTINGS, "--epochs", "3", "--checkpoint-minutes", "0")
    outcome = process.run(arguments, folder, seconds=300, before=interrupt_last_epoch)
    if outcome.code != 130:
        raise RuntimeError(f"the run was not interrupted: {outcome}")


def _expect(material: Material, name: str, command: Command) -> Any:
    """The result of a command with an undamaged run."""
    here = Path(tempfile.mkdtemp(dir=material.folder))
    material.copy(name, here / "run")
    _must(here, *command.arguments(material))
    (here / "modules").replace(material.folder / "modules")
    found = command.result(here)
    if name == "interrupted" and command.name == "resume":
        wrong = command.differs(found, COMMANDS["resume"].result(material.folder, "whole"))
        if wrong:
            raise RuntimeError(f"resumed and undisturbed differ: {wrong}")
    shutil.rmtree(here)
    return found


def _import(module: str) -> None:
    """Import a module once, before the forks; some cannot be imported by name."""
    if module in sys.modules or module.startswith("__"):
        return
    os.environ.setdefault("MPLBACKEND", "agg")
    try:
        importlib.import_module(module)
    except Exception:
        return
