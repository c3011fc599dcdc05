"""`protonce demo`: train MoCo, in-batch and with a queue, and PCL on the built-in images, and compare them."""

import dataclasses
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from protonce import manifest, trainings
from protonce.compare.scores import NEIGHBOURS, Row, pixels, score
from protonce.config import Settings
from protonce.data.sources import Source, open_source
from protonce.encoder import build
from protonce.errors import UserError
from protonce.features import WORDS, extract
from protonce.files import write_whole
from protonce.report.page import write_report
from protonce.run import Run, load
from protonce.tables import percent, print_table

# What each row changes of the recipe. Negatives of `moco` and `pcl` come from the batch, those of `moco-queue` from
# earlier batches, as in MoCo's paper, with the settings that were chosen for it (docs/claim.md).
SYSTEMS = {
    "moco": ["--method", "moco"],
    "moco-queue": [
        *("--method", "moco", "--queue-push", "after", "--queue", "512", "--twin-momentum", "0.99", "--lr", "0.06")
    ],
    "pcl": ["--method", "pcl"],
}
QUICK_SYSTEMS = ("moco", "pcl")
QUICK = ["--limit", "300", "--epochs", "3"]
QUICK_PCL = ["--warmup-epochs", "1", "--ramp-epochs", "0"]
# Number of seeds of the study with these settings, and for how many of them PCL was ahead of MoCo (docs/claim.md).
STUDY = {"seeds": 5, "knn": 5, "ami": 5}


def run_demo(out: Path, seed: int, quick: bool = False) -> list[Row]:
    """Train the systems, print the table, and write demo.json and a page that compares them.

    An interrupted demo continues; a finished one is shown again. A `quick` one trains on fewer images for fewer epochs,
    which shows that everything works, but not which system is better.
    """
    console = Console(highlight=False, markup=False)
    _check_folder(out, seed, quick)
    images = "300 small drawings for 3 epochs" if quick else "3,000 small drawings"
    queue = "" if quick else ", and MoCo with a queue of earlier batches, as in its paper"
    console.print(
        f"Training on {images} without labels: MoCo and PCL with negatives from the batch (in-batch MoCo){queue}.",
        soft_wrap=True,
    )
    names = QUICK_SYSTEMS if quick else tuple(SYSTEMS)
    if not all((out / name / "config.yaml").exists() and load(out / name).finished for name in names):
        commands = {name: _command(out / name, name, seed, quick) for name in names}
        _train_all(out, commands, console)
    runs = {name: load(out / name) for name in names}
    train, test = runs["pcl"].source(), open_source("builtin", "test", seed)
    rows = _rows(runs, train, test)
    write_whole(out / "demo.json", json.dumps({"rows": [dataclasses.asdict(row) for row in rows]}, indent=2) + "\n")
    for row in rows:
        if row.name in runs:
            _keep(runs[row.name], row, test)
    page = write_report(runs["pcl"], against=runs["moco"])

    console.print("\nFeatures of 1,500 test images in 30 classes; higher is better:")
    cells = [(row.name, percent(row.knn), f"{row.ami:.3f}") for row in rows]
    print_table(console, "lrr", ("features", "kNN %", "AMI"), cells)
    if quick:
        console.print(
            "Everything works. This was too short to compare the systems: `protonce demo` does.", soft_wrap=True
        )
    else:
        console.print(
            f"This is one seed. Of {STUDY['seeds']} other seeds, PCL was ahead of in-batch MoCo for {STUDY['knn']} on "
            f"kNN and for {STUDY['ami']} on AMI (docs/claim.md).",
            soft_wrap=True,
        )
    console.print(
        f"To see the clusters, a map and the training curves of both, open {page} in a browser.", soft_wrap=True
    )
    console.print(f"To train on your own images:\n\n    {_program()} train FOLDER --out runs/first\n", soft_wrap=True)
    return rows


def _program() -> str:
    """How to call protonce from this shell."""
    if shutil.which("protonce"):
        return "protonce"
    if Path(sys.argv[0]).name == "protonce":  # such as .venv/bin/protonce
        return shlex.quote(sys.argv[0])
    return shlex.join([sys.executable, "-m", "protonce"])


def _check_folder(out: Path, seed: int, quick: bool) -> None:
    """A new folder, or one with a demo of the same seed and length."""
    if seed < 0:
        raise UserError(f"--seed {seed} is negative; choose 0 or more")
    Settings(seed=seed)
    ours = {"demo.json", *SYSTEMS, *(f"{name}.log" for name in SYSTEMS)}
    if out.is_file() or (out.exists() and not {p.name for p in out.iterdir() if p.name[0] != "."} <= ours):
        raise UserError(f"{out} is not empty and does not contain a demo; choose a new folder with --out")
    for name in SYSTEMS:
        if (out / name / "config.yaml").exists():
            found = load(out / name).settings
            if found.seed != seed or (found.limit > 0) != quick:
                what = "with another seed" if found.seed != seed else "of another length"
                raise UserError(f"{out} contains a demo {what}; choose another folder with --out, or remove it")


def _train_all(out: Path, commands: dict[str, list[str]], console: Console) -> None:
    """Single-threaded processes side by side do more than one after the other with two threads each."""
    side_by_side = (os.cpu_count() or 1) >= 2 and not torch.cuda.is_available()
    waiting = list(reversed(commands.items()))  # the longest first
    running: dict[str, BaseProcess] = {}
    try:
        with _Bars(console, out, commands) as bars:
            while waiting or running:
                while waiting and len(running) < (min(os.cpu_count() or 1, len(commands)) if side_by_side else 1):
                    name, command = waiting.pop(0)
                    running[name] = trainings.start(command, _log(out, name), one_thread=side_by_side)
                for name, process in list(running.items()):
                    bars.update(name)
                    if process.exitcode is not None:
                        del running[name]
                        if process.exitcode != 0:
                            last = _log(out, name).read_text().strip().splitlines()[-1:]
                            raise UserError(f"training {name} failed: {' '.join(last)} (see {_log(out, name)})")
                time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()


def _command(out: Path, name: str, seed: int, quick: bool) -> list[str]:
    """What follows `protonce` to train a system, or to continue."""
    # Clusters for the record every fifth epoch are enough for the page; they change nothing of what is learnt.
    options = ["--recipe", "demo", *SYSTEMS[name], "--seed", str(seed), "--record-every", "5"]
    if quick:
        options += [*QUICK, *(QUICK_PCL if name == "pcl" else ())]
    return ["train", "builtin", "--out", str(out), *options, "--resume", "--no-report"]


def _log(out: Path, name: str) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    return out / f"{name}.log"


class _Bars:
    """A bar a system on a terminal; elsewhere a line whenever a quarter is done."""

    def __init__(self, console: Console, out: Path, names: Iterable[str]) -> None:
        self.console, self.out = console, out
        columns = (TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.fields[text]}"))
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.tasks = {name: self.progress.add_task(name, total=None, text="starting") for name in names}
        self.seen = dict.fromkeys(self.tasks, 0)
        self.runs: dict[str, Run] = {}  # reading a config.yaml at each look would take a third of a core

    def __enter__(self) -> "_Bars":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def update(self, name: str) -> None:
        path = self.out / name
        if not (path / "metrics.jsonl").exists():
            return
        if name not in self.runs:
            self.runs[name] = load(path)
        run = self.runs[name]
        whole, epochs = run.metrics, run.settings.epochs
        if not whole or len(whole) == self.seen[name]:
            return
        last = whole[-1]
        losses = ", ".join(f"{term} loss {last[term]:.2f}" for term in run.terms if term in last)
        text = f"epoch {len(whole)}/{epochs}, {losses}, {(epochs - len(whole)) * last['seconds']:.0f} s left"
        self.progress.update(self.tasks[name], total=epochs, completed=len(whole), text=text)
        quarter = max(epochs // 4, 1)
        if not self.console.is_terminal and len(whole) // quarter > self.seen[name] // quarter:
            self.console.print(f"{name:>10}  {text}", soft_wrap=True)
        self.seen[name] = len(whole)


def _keep(run: Run, row: Row, test: Source) -> None:
    """The row as an evaluation of its run."""
    result = {
        "protocol": "comparison",
        "metrics": {"knn": row.knn, "ami": row.ami},
        "settings": {"k": NEIGHBOURS, "similarity": "cosine", "clusters": len(set(test.labels or []))},
        "features": WORDS["backbone"],
        "data": {"test": {"source": test.spec, "images": len(test), "fingerprint": test.fingerprint}},
    }
    manifest.write(run.path, "evaluations/comparison.json", json.dumps(result, indent=2) + "\n")


def _rows(runs: dict[str, Run], train: Source, test: Source) -> list[Row]:
    """Scores of raw pixels, of an untrained encoder and of the runs, with the images they were trained on as bank."""
    pcl = runs["pcl"]
    loaders = [pcl.loader(source) for source in (train, test)]
    untrained = build(pcl.settings).eval().to(pcl.device)
    features = {
        "raw-pixels": [extract(pixels, loader) for loader in loaders],
        "untrained": [extract(untrained.features, loader) for loader in loaders],
        **{name: [run.features(source, "backbone")[0] for source in (train, test)] for name, run in runs.items()},
    }
    return [score(name, known, tested, train, test) for name, (known, tested) in features.items()]
