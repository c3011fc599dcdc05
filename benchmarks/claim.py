"""Do prototypes help? PCL against MoCo on paired seeds, by the protocol in docs/claim.md.

    python -m benchmarks.claim --data builtin --budget 60
    python -m benchmarks.claim --data cifar10/ --seeds 0,1,2,3,4 --budget 120

A study is a grid in benchmarks/claims/NAME.yaml. Its cells (system, settings, seed) are trained two at a time, one
thread each; a cell that is done leaves a JSON file and is never trained again, so the study goes on where it
stopped. It says what it found whenever it is called; `--budget 0` only says it.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from protonce.compare import Lead, lead
from protonce.errors import UserError
from protonce.files import write_whole

HERE = Path(__file__).parent
MOST_MINUTES = 45  # a cell
SCORES = ("knn", "ami", "linear", "shot_1", "shot_4", "shot_16")


@dataclass(frozen=True)
class Study:
    """What benchmarks/claims/NAME.yaml says."""

    name: str
    data: str
    images: int  # to train on; 0: all of the training part
    held_out: int  # of the training part, to choose settings by; 0: other seeds' test images (builtin)
    choosing_seeds: list[int]
    seeds: list[int]
    common: dict[str, Any]  # settings of both systems
    trials: dict[str, list[dict[str, Any]]]  # of each system: what is tried
    variations: list[dict[str, Any]]  # one change each of the chosen settings, to learn from


@dataclass(frozen=True)
class Cell:
    """One training and its scores."""

    stage: str  # "choose" and "vary" are scored on held-out images, "final" on the test images
    system: str
    settings: dict[str, Any]
    seed: int

    @property
    def name(self) -> str:
        """For the file; the settings are inside it."""
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.stage}-{self.system}-{digest}-{self.seed}"


def read_study(data: str, grid: Path | None, seeds: list[int] | None) -> Study:
    """The grid of this name, or the one that suits any labelled images."""
    stem = Path(data).stem
    path = grid or HERE / "claims" / f"{stem}.yaml"
    values = yaml.safe_load((path if path.exists() else HERE / "claims" / "any.yaml").read_text())
    study = Study(name=stem, data=data, **values)
    counts = {system: len(trials) for system, trials in study.trials.items()}
    if len(set(counts.values())) != 1:
        raise UserError(f"{path} gives the systems unequal numbers of trials: {counts}")
    return dataclasses.replace(study, seeds=seeds) if seeds else study


def cells(study: Study, done: Mapping[str, dict[str, Any]]) -> Iterator[Cell]:
    """The cells that can be told by now, in order: choose, then final, then variations."""
    for seed in study.choosing_seeds:
        for moco, pcl in zip(study.trials["moco"], study.trials["pcl"], strict=True):
            yield Cell("choose", "moco", {**study.common, **moco}, seed)
            yield Cell("choose", "pcl", {**study.common, **pcl}, seed)
    best = {system: chosen(study, system, done) for system in ("moco", "pcl")}
    if best["moco"] is None or best["pcl"] is None:
        return
    for seed in study.seeds:
        yield Cell("final", "moco", best["moco"], seed)
        yield Cell("final", "pcl", best["pcl"], seed)
    ratio = seconds_ratio(study, done)
    for seed in study.seeds if ratio is not None else []:
        yield Cell("final", "moco-longer", {**best["moco"], "epochs": round(best["pcl"]["epochs"] * ratio)}, seed)
    for seed in study.choosing_seeds:
        for change in study.variations:
            system = change.get("method", "pcl")
            settings = {**best[system], **{k: v for k, v in change.items() if k != "method"}}
            if "init" in change:  # from weights that already mean something: those of the chosen MoCo
                settings["init"] = Cell("choose", "moco", best["moco"], seed).name
            yield Cell("vary", system, settings, seed)


def chosen(study: Study, system: str, done: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Settings with the best mean of kNN accuracy and AMI on held-out images; None until all are tried."""
    if len(study.trials[system]) == 1:
        return {**study.common, **study.trials[system][0]}
    scores = []
    for trial in study.trials[system]:
        settings = {**study.common, **trial}
        results = [done.get(Cell("choose", system, settings, seed).name) for seed in study.choosing_seeds]
        if any(result is None for result in results):
            return None
        scores.append((statistics.fmean(_held_out_score(result) for result in results if result), settings))
    return max(scores, key=lambda entry: entry[0])[1]


def seconds_ratio(study: Study, done: Mapping[str, dict[str, Any]]) -> float | None:
    """Seconds an epoch of PCL takes for one of MoCo: medians over cells of the first seed; None until there are."""
    first = (study.choosing_seeds or study.seeds)[0]
    stage = "choose" if study.choosing_seeds else "final"
    times: dict[str, list[float]] = {"moco": [], "pcl": []}
    for result in done.values():
        if (result["stage"], result["seed"]) == (stage, first) and result["system"] in times:
            times[result["system"]].append(result["seconds"] / result["settings"]["epochs"])
    return statistics.median(times["pcl"]) / statistics.median(times["moco"]) if all(times.values()) else None


def _held_out_score(result: Mapping[str, Any]) -> float:
    return float(result["scores"]["knn"] + result["scores"]["ami"]) / 2


# Running


def run(study: Study, folder: Path, work: Path, budget: float, jobs: int) -> dict[str, dict[str, Any]]:
    """Train what is not done yet, as long as the budget (seconds) lasts; all results."""
    ends = time.monotonic() + budget
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: set[str] = set()
    longest = 0.0
    began: dict[str, float] = {}
    while True:
        done = read_results(folder)
        waiting = [
            c for c in cells(study, done) if c.name not in done and c.name not in running and c.name not in failed
        ]
        room = time.monotonic() + longest < ends
        while waiting and len(running) < jobs and room:
            cell = waiting.pop(0)
            command = [sys.executable, "-m", "benchmarks.claim_cell", study.data, str(folder), str(work)]
            command.append(json.dumps({**dataclasses.asdict(cell), "images": study.images, "held_out": study.held_out}))
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            running[cell.name], began[cell.name] = subprocess.Popen(command, env=environment), time.monotonic()
        if not running:
            return done
        time.sleep(1)
        for name, process in list(running.items()):
            took = time.monotonic() - began[name]
            if took > 60 * MOST_MINUTES:
                process.kill()
                print(f"{name} took more than {MOST_MINUTES} minutes and was ended", file=sys.stderr)
            elif process.poll() is None:
                continue
            del running[name]
            longest = max(longest, took)
            if not (folder / f"{name}.json").exists():
                failed.add(name)
            print(f"{len(read_results(folder))} cells done, last {name} in {took:.0f} s", flush=True)


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Cells that are done, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*-*.json"))}


# Saying


def differences(done: Mapping[str, dict[str, Any]], baseline: str, score: str) -> dict[int, float]:
    """PCL's score minus the baseline's, by seed, where both are done."""
    rows = {(r["system"], r["seed"]): r["scores"][score] for r in done.values() if r["stage"] == "final"}
    seeds = sorted(seed for system, seed in rows if system == "pcl" and (baseline, seed) in rows)
    return {seed: rows["pcl", seed] - rows[baseline, seed] for seed in seeds}


def summarise(study: Study, done: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Leads of PCL over MoCo at equal epochs and at equal time; what was chosen; the machine time spent."""
    baselines = ("moco", "moco-longer")
    leads: dict[str, dict[str, Lead]] = {}
    for baseline in baselines:
        found = {score: differences(done, baseline, score) for score in SCORES}
        if len(found["knn"]) >= 2:
            leads[baseline] = {score: lead(list(values.values())) for score, values in found.items()}
    return {
        "study": study.name,
        "data": study.name if study.data != "builtin" else "builtin",
        "seeds": sorted(differences(done, "moco", "knn")),
        "chosen": {system: chosen(study, system, done) for system in ("moco", "pcl")},
        "leads": {b: {s: dataclasses.asdict(value) for s, value in rows.items()} for b, rows in leads.items()},
        "core_hours": round(sum(r["wall_seconds"] for r in done.values()) / 3600, 2),
        "cells": len(done),
    }


def tables(study: Study, done: Mapping[str, dict[str, Any]]) -> str:
    """Everything that is known, as Markdown."""
    lines = [f"## {study.name}", "", f"{len(done)} cells, {summarise(study, done)['core_hours']} core-hours.", ""]
    for stage, title in (("choose", "Trials, on held-out images"), ("vary", "One change of the chosen settings")):
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for result in done.values():
            if result["stage"] == stage:
                groups.setdefault((result["system"], _difference(study, result["settings"])), []).append(result)
        if groups:
            lines += [f"### {title}", "", "| system | settings | seeds | kNN % | AMI |", "|---|---|---:|---:|---:|"]
            for (system, text), results in sorted(groups.items()):
                knn, ami = (statistics.fmean(r["scores"][s] for r in results) for s in ("knn", "ami"))
                lines.append(f"| {system} | {text} | {len(results)} | {100 * knn:.1f} | {ami:.3f} |")
            lines.append("")
    final = [r for r in done.values() if r["stage"] == "final"]
    if final:
        lines += ["### Test images", "", f"| system | seed | epochs | {' | '.join(SCORES)} |"]
        lines.append("|---|---:|---:|" + "---:|" * len(SCORES))
        for r in sorted(final, key=lambda r: (r["system"], r["seed"])):
            numbers = " | ".join(f"{r['scores'][s]:.3f}" for s in SCORES)
            lines.append(f"| {r['system']} | {r['seed']} | {r['settings']['epochs']} | {numbers} |")
        lines += ["", "| PCL minus | score | mean | std | seeds in favour | lead |", "|---|---|---:|---:|---:|---|"]
        for baseline, rows in summarise(study, done)["leads"].items():
            for score, x in rows.items():
                verdict = "yes" if x["leads"] else "no"
                counts = f"{x['positive']} of {x['seeds']}"
                lines.append(f"| {baseline} | {score} | {x['mean']:+.4f} | {x['std']:.4f} | {counts} | {verdict} |")
        lines.append("")
    return "\n".join(lines)


def _difference(study: Study, settings: Mapping[str, Any]) -> str:
    """How settings differ from what all cells have in common."""
    return ", ".join(f"{k} {v}" for k, v in settings.items() if study.common.get(k) != v) or "as common"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="builtin", help="builtin, a folder with train and test parts, or one folder")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], help="default: the grid's")
    parser.add_argument("--budget", type=float, default=60, help="minutes after which no new cell is begun")
    parser.add_argument("--grid", type=Path, help="default: benchmarks/claims/NAME.yaml, or any.yaml")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "claim", help="where cells are kept")
    parser.add_argument("--work", type=Path, default=Path("runs") / "claim", help="run folders of the trainings")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cells at once, one thread each")
    options = parser.parse_args()
    try:
        study = read_study(options.data, options.grid, options.seeds)
        folder = options.results / study.name
        folder.mkdir(parents=True, exist_ok=True)
        done = run(study, folder, options.work / study.name, 60 * options.budget, options.jobs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    write_whole(folder / "summary.json", json.dumps(summarise(study, done), indent=2) + "\n")
    write_whole(folder / "tables.md", tables(study, done))
    print(tables(study, done))


if __name__ == "__main__":
    main()
