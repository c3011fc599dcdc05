"""Do prototypes help? PCL against MoCo with the same queue, on paired seeds, by the protocol in docs/claim.md.

    python -m benchmarks.claim --data builtin --budget 60
    python -m benchmarks.claim --data builtin --grid benchmarks/claims/builtin-queue.yaml --budget 60
    python -m benchmarks.claim --data cifar10/ --seeds 0,1,2,3,4 --budget 120

A study is a grid in benchmarks/claims/NAME.yaml. Its cells (system, settings, seed) are trained side by side, one
thread each; a cell that is done leaves a JSON file and is never trained again, so the study goes on where it
stopped. It says what it found whenever it is called; `--budget 0` only says it. The published cells are in
benchmarks/results/claim: `--results benchmarks/results/claim --budget 0` says what they found.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.data import open_parts
from protonce.auto import DataSize, choose_recipe
from protonce.compare.leads import Lead, lead
from protonce.config import read_recipe
from protonce.data.sources import Source
from protonce.errors import UserError
from protonce.files import write_whole
from protonce.preparation import find_device

HERE = Path(__file__).parent
MOST_MINUTES = 180  # a cell, on a machine that does other work too
SCORES = {
    "knn": "kNN",
    "ami": "AMI",
    "linear": "linear probe",
    "shot_1": "1 image a class",
    "shot_4": "4 images a class",
    "shot_16": "16 images a class",
}
BASELINES = ("moco", "moco-longer")  # at equal epochs, and at equal time


@dataclass(frozen=True)
class Study:
    """What benchmarks/claims/NAME.yaml says."""

    name: str
    data: str
    images: int  # to train on; 0: all of the training part that is not held out
    held_out: int  # of the training part, to choose settings by; 0: the test images of the choosing seeds (builtin)
    choosing_seeds: list[int]
    seeds: list[int]
    common: dict[str, Any]  # settings of both systems
    trials: dict[str, list[dict[str, Any]]]  # of each system: what is tried
    variations: list[dict[str, Any]]  # one change each of the chosen settings, to learn from
    moco: str = "in-batch MoCo"  # what the baseline is called: with a queue as long as a batch it is not MoCo's own
    shared: list[str] = field(default_factory=list)  # settings of the instance term that PCL takes from the chosen MoCo
    read_before: str = ""  # earlier study of the same training images, see `data.unread_parts`
    test_images: int = 0  # with `read_before`: how many images it has not read are tested on


@dataclass(frozen=True)
class Cell:
    """One training and its scores."""

    stage: str  # "choose" and "vary" are scored on held-out images, "final" on the test images
    system: str
    settings: dict[str, Any]
    seed: int
    images: int
    held_out: int
    read_before: str = ""
    test_images: int = 0

    @property
    def name(self) -> str:
        """For the file: what is trained, on what, and a digest of all settings, the recipe's included."""
        settings = {**read_recipe(self.settings["recipe"]), **self.settings}
        unread = [self.read_before, self.test_images] if self.read_before else []
        text = json.dumps([settings, self.images, self.held_out, *unread], sort_keys=True)
        return f"{self.stage}-{self.system}-{hashlib.sha256(text.encode()).hexdigest()[:8]}-{self.seed}"


def read_study(data: str, grid: Path | None, seeds: list[int] | None) -> Study:
    """The grid that is named, the one of the data's name, or the one for any labelled images."""
    stem = Path(data).stem
    own = HERE / "claims" / f"{stem}.yaml"
    path = grid or (own if own.exists() else HERE / "claims" / "any.yaml")
    if not path.exists():
        raise UserError(f"there is no grid {path}")
    print(f"grid {path}")
    study = Study(name=grid.stem if grid else stem, data=data, **yaml.safe_load(path.read_text()))
    counts = {system: len(trials) for system, trials in study.trials.items()}
    if len(set(counts.values())) != 1:
        raise UserError(f"{path} gives the systems unequal numbers of trials: {counts}")
    if study.choosing_seeds and not study.held_out and data != "builtin":
        raise UserError(f"{path} chooses settings and holds no image out; without held_out it would choose by the test")
    if not study.choosing_seeds and max(counts.values()) > 1:
        raise UserError(f"{path} has several trials and no choosing_seeds to choose one by; name some")
    for trial in study.trials["pcl"]:
        if set(trial) & set(study.shared):
            raise UserError(f"{path} tries {trial} for pcl, and {', '.join(study.shared)} are those of the chosen moco")
    study = dataclasses.replace(study, seeds=seeds) if seeds else study
    seen = sorted({*study.seeds} & {*study.choosing_seeds})
    if seen:
        raise UserError(f"the settings were chosen on the seeds {seen}, which cannot test them; name others as --seeds")
    return study


def of_images(study: Study, train: Source) -> Study:
    """The study with the recipe for these images; where no grid is of their name, apart from others of that name."""
    recipe, _ = choose_recipe(DataSize(study.images or len(train), train.side), find_device("auto"))
    own = (HERE / "claims" / f"{study.name}.yaml").exists()
    name = study.name if own else f"{study.name}-{train.fingerprint[:8]}"
    return dataclasses.replace(study, name=name, common={"recipe": recipe, **study.common})


Done = Mapping[str, dict[str, Any]]  # results by the name of their cell


def cells(study: Study, done: Done) -> Iterator[Cell]:
    """The cells that can be told by now, in order: choose, then final, then variations."""
    for seed in study.choosing_seeds:
        for system in study.trials:
            for settings in tried(study, system, done) or []:
                yield _cell(study, "choose", system, settings, seed)
    moco, pcl = chosen(study, "moco", done), chosen(study, "pcl", done)
    if moco is None or pcl is None:
        return
    for seed in study.seeds:
        yield _cell(study, "final", "moco", _recorded(moco, pcl), seed)
        yield _cell(study, "final", "pcl", pcl, seed)
    ratio = seconds_ratio(study, done)
    if ratio is not None:
        longer = {**_recorded(moco, pcl), "epochs": round(pcl["epochs"] * ratio)}
        for seed in study.seeds:
            yield _cell(study, "final", "moco-longer", longer, seed)
    for seed in study.choosing_seeds:
        for change in study.variations:
            system = change.get("method", "pcl")
            settings = {**(moco if system == "moco" else pcl), **{k: v for k, v in change.items() if k != "method"}}
            if "init" in change:  # from weights that already mean something: those of the chosen MoCo
                settings["init"] = _cell(study, "choose", "moco", moco, seed).name
            yield _cell(study, "vary", system, settings, seed)


def _recorded(moco: dict[str, Any], pcl: dict[str, Any]) -> dict[str, Any]:
    """MoCo clustered for the record at PCL's granularities, so that the clusters can be compared."""
    return {**moco, **{name: pcl[name] for name in ("clusters", "warmup_epochs") if name in pcl}}


def _cell(study: Study, stage: str, system: str, settings: dict[str, Any], seed: int) -> Cell:
    sizes = study.images, study.held_out, study.read_before, study.test_images
    return Cell(stage, system, settings, seed, *sizes)


def tried(study: Study, system: str, done: Done) -> list[dict[str, Any]] | None:
    """Settings of each trial; None for PCL until the instance term that it shares with MoCo is chosen."""
    given = {}
    if system == "pcl" and study.shared:
        moco = chosen(study, "moco", done)
        if moco is None:
            return None
        given = {name: moco[name] for name in study.shared}
    return [{**study.common, **given, **trial} for trial in study.trials[system]]


def chosen(study: Study, system: str, done: Done) -> dict[str, Any] | None:
    """Settings with the best mean of kNN accuracy and AMI on held-out images; None until all are tried."""
    choices = tried(study, system, done)
    if choices is None or len(choices) == 1:
        return choices and choices[0]
    scores = []
    for settings in choices:
        names = [_cell(study, "choose", system, settings, seed).name for seed in study.choosing_seeds]
        if any(name not in done for name in names):
            return None
        scores.append(statistics.fmean(done[name]["scores"]["knn"] + done[name]["scores"]["ami"] for name in names))
    return choices[scores.index(max(scores))]


def seconds_ratio(study: Study, done: Done) -> float | None:
    """Seconds an epoch of PCL takes for one of MoCo; None until all seeds are trained.

    The median over the final pairs, which are trained side by side: other work on the machine slows both.
    """
    moco, pcl = chosen(study, "moco", done), chosen(study, "pcl", done)
    if moco is None or pcl is None:
        return None
    ratios = []
    for seed in study.seeds:
        pair = [_cell(study, "final", "pcl", pcl, seed), _cell(study, "final", "moco", _recorded(moco, pcl), seed)]
        if any(cell.name not in done for cell in pair):
            return None
        ours, theirs = (done[cell.name]["seconds"] / cell.settings["epochs"] for cell in pair)
        ratios.append(ours / theirs)
    return statistics.median(ratios)


# Running


def run(study: Study, folder: Path, work: Path, budget: float, jobs: int) -> tuple[Done, set[str]]:
    """Train what is not done yet, as long as the budget (seconds) lasts; all results, and the cells that failed."""
    ends = time.monotonic() + budget
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    failed: set[str] = set()
    longest = 0.0
    try:
        while True:
            done = read_results(study, folder)
            begun = done.keys() | running.keys() | failed
            waiting = {cell.name: cell for cell in cells(study, done) if cell.name not in begun}
            while waiting and len(running) < jobs and time.monotonic() + longest < ends:
                name = next(iter(waiting))
                text = json.dumps(dataclasses.asdict(waiting.pop(name)))
                command = [sys.executable, "-m", "benchmarks.claim_cell", study.data, str(folder), str(work), text]
                process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
                running[name] = process, time.monotonic()
            if not running:
                return done, failed
            _wait(running)
            for name, (process, began) in list(running.items()):
                took = time.monotonic() - began
                if took > 60 * MOST_MINUTES:
                    process.kill()
                elif process.poll() is None:
                    continue
                del running[name]
                longest = max(longest, took)
                if not (folder / f"{name}.json").exists():
                    failed.add(name)
                print(f"{name} {'failed' if name in failed else 'done'} after {took:.0f} s", flush=True)
    finally:
        for process, _ in running.values():
            process.terminate()


def _wait(running: dict[str, tuple[subprocess.Popen[bytes], float]]) -> None:
    """Until a cell has ended, or has had its time."""
    while all(p.poll() is None and time.monotonic() - began <= 60 * MOST_MINUTES for p, began in running.values()):
        time.sleep(1)


def read_results(study: Study, folder: Path) -> Done:
    """Cells of this study that are done; other files in the folder belong to other grids."""
    results = {path.stem: json.loads(path.read_text()) for path in folder.glob("*-*.json")}
    return {cell.name: results[cell.name] for cell in cells(study, results) if cell.name in results}


# Saying


def differences(done: Done, baseline: str, score: str) -> dict[int, float]:
    """PCL's score minus the baseline's, by seed, where both are done."""
    rows = {(r["system"], r["seed"]): r["scores"][score] for r in done.values() if r["stage"] == "final"}
    seeds = sorted(seed for system, seed in rows if system == "pcl" and (baseline, seed) in rows)
    return {seed: rows["pcl", seed] - rows[baseline, seed] for seed in seeds}


def summarise(study: Study, done: Done) -> dict[str, Any]:
    """Leads of PCL over MoCo at equal epochs and at equal time; what was chosen; the time spent."""
    leads: dict[str, dict[str, Lead]] = {}
    for baseline in BASELINES:
        found = {score: differences(done, baseline, score) for score in SCORES}
        if len(found["knn"]) >= 2:
            leads[baseline] = {score: lead(list(values.values())) for score, values in found.items()}
    return {
        "study": study.name,
        "seeds": sorted(differences(done, "moco", "knn")),
        "chosen": {system: chosen(study, system, done) for system in ("moco", "pcl")},
        "seconds_ratio": seconds_ratio(study, done),
        "leads": {b: {s: dataclasses.asdict(value) for s, value in rows.items()} for b, rows in leads.items()},
        "cells": len(done),
        "core_hours": round(sum(r["wall_seconds"] for r in done.values()) / 3600, 2),
    }


def tables(study: Study, done: Done) -> str:
    """Everything that is known, as Markdown."""
    summary = summarise(study, done)
    lines = [f"## {study.name}", "", f"{len(done)} cells, {summary['core_hours']} core-hours.", ""]
    lines += _held_out_table(
        study, done, "choose", "Trials, on held-out images; settings that differ from the common ones"
    )
    lines += _held_out_table(study, done, "vary", "One change of the chosen settings, on held-out images")
    final = sorted((r for r in done.values() if r["stage"] == "final"), key=lambda r: (r["system"], r["seed"]))
    if final:
        lines += ["### Test images", "", f"| system | seed | epochs | seconds | {' | '.join(SCORES)} |"]
        lines.append("|---|---:|---:|---:|" + "---:|" * len(SCORES))
        for r in final:
            numbers = " | ".join(f"{r['scores'][s]:.3f}" for s in SCORES)
            lines.append(
                f"| {r['system']} | {r['seed']} | {r['settings']['epochs']} | {r['seconds']:.0f} | {numbers} |"
            )
        lines += ["", "`moco-longer` has as many epochs as fit into PCL's time.", ""]
        for baseline in summary["leads"]:
            lines += [*lead_table(study, done, baseline), ""]
        lines += _cluster_table(final)
    return "\n".join(lines)


def lead_table(study: Study, done: Done, baseline: str) -> list[str]:
    """PCL beside a baseline, over the seeds that both are done for, as docs/claim.md has it."""
    name = study.moco if baseline == "moco" else f"{study.moco}, equal time"
    columns = ("score", name, "PCL", f"PCL minus {study.moco}, mean and deviation", "seeds in favour", "lead")
    lines = [f"| {' | '.join(columns)} |", "|---|---:|---:|---:|---:|---|"]
    final = {(r["system"], r["seed"]): r["scores"] for r in done.values() if r["stage"] == "final"}
    for score, title in SCORES.items():
        found = differences(done, baseline, score)
        x = lead(list(found.values()))
        theirs, ours = (statistics.fmean(final[system, seed][score] for seed in found) for system in (baseline, "pcl"))
        if score == "ami":
            row = f"{theirs:.3f} | {ours:.3f} | {_signed(x.mean, 3)} ± {x.std:.3f}"
        else:
            row = f"{100 * theirs:.1f} % | {100 * ours:.1f} % | {_signed(100 * x.mean, 1)} ± {100 * x.std:.1f} points"
        lines.append(f"| {title} | {row} | {x.positive} of {x.seeds} | {'yes' if x.leads else 'no'} |")
    return lines


def _signed(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # no minus before a zero


def _held_out_table(study: Study, done: Done, stage: str, title: str) -> list[str]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in (r for r in done.values() if r["stage"] == stage):
        usual = study.common if stage == "choose" else chosen(study, result["system"], done) or {}
        text = ", ".join(f"{k} {v}" for k, v in result["settings"].items() if k not in usual or usual[k] != v)
        text = re.sub(r"\binit \S+?(,|$)", r"init from the chosen MoCo\1", text)
        groups.setdefault((result["system"], text or "none"), []).append(result)
    if not groups:
        return []
    lines = [f"### {title}", "", "| system | settings | seeds | kNN | AMI | linear probe |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for (system, text), results in groups.items():
        knn, ami, linear = (statistics.fmean(r["scores"][s] for r in results) for s in ("knn", "ami", "linear"))
        row = f"{100 * knn:.1f} % | {ami:.3f} | {100 * linear:.1f} %"
        lines.append(f"| {system} | {text} | {len(results)} | {row} |")
    return [*lines, ""]


def _cluster_table(final: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the clusters are, as means over seeds."""
    groups: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for result in final:
        for entry in result["clusters"]:
            groups.setdefault((result["system"], entry["when"], entry["k"]), []).append(entry)
    names = [name for name in next(iter(groups.values()))[0] if name not in ("when", "k")]
    lines = ["### What the clusters of the training images are", ""]
    lines += [f"| system | when | k | {' | '.join(names)} |", "|---|---|---:|" + "---:|" * len(names)]
    for (system, when, k), entries in groups.items():
        means = " | ".join(f"{statistics.fmean(e[name] for e in entries):.2f}" for name in names)
        lines.append(f"| {system} | {when} | {k} | {means} |")
    return [*lines, ""]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="builtin", help="builtin, a folder with train and test parts, or one folder")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], help="default: the grid's")
    parser.add_argument("--budget", type=float, default=60, help="minutes after which no new cell is begun")
    parser.add_argument("--grid", type=Path, help="default: benchmarks/claims/NAME.yaml, or any.yaml")
    parser.add_argument("--results", type=Path, default=Path("runs") / "claim" / "results", help="where cells are kept")
    parser.add_argument("--work", type=Path, default=Path("runs") / "claim", help="run folders of the trainings")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cells at once, one thread each")
    options = parser.parse_args()
    try:
        study = read_study(options.data, options.grid, options.seeds)
        study = of_images(study, open_parts(study.data, seed=0)[0])  # a mistake is said at once, not by every cell
        folder = options.results / study.name
        folder.mkdir(parents=True, exist_ok=True)
        done, failed = run(study, folder, options.work / study.name, 60 * options.budget, options.jobs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    write_whole(folder / "summary.json", json.dumps(summarise(study, done), indent=2) + "\n")
    write_whole(folder / "tables.md", tables(study, done))
    print(tables(study, done))
    if failed:
        print(f"error: {len(failed)} cells failed: {', '.join(sorted(failed))}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
