"""Attack the program with damaged run folders, archives, images, settings and tables, full disks and kills.

    python -m benchmarks.attack [--minutes 10] [--seed S] [--classes a,b]
    python -m benchmarks.attack --only CLASS:SEED:INDEX

The promise: wrong or damaged input ends in one line on stderr and exit code 2, within 30 seconds, with nothing
half-written; a damaged image is skipped and listed; a damaged cache is made again; no result is ever computed from
something that is not what was written. Prints how often it was broken, by class, and how to repeat each case; exit
code 1 if it was.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # no threads may run in a process that is forked

import argparse
import gc
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.attacks import archives, files, full_disk, images, moments, run_folder, settings, tables
from benchmarks.attacks.material import Material, build
from benchmarks.attacks.process import SECONDS
from benchmarks.attacks.results import COMMANDS
from benchmarks.attacks.stage import KINDS, Stage
from benchmarks.timing import publish

CLASSES: dict[str, Callable[[Stage], None]] = {
    "full-disk": full_disk.attack,
    "run-folder": run_folder.attack,
    "archives": archives.attack,
    "files": files.attack,
    "images": images.attack,
    "settings": settings.attack,
    "tables": tables.attack,
    "moments": moments.attack,
}
LONGEST_CASE = 600.0  # seconds, on the clock


@dataclass(frozen=True)
class Case:
    """A case is a function of these three."""

    name: str
    seed: int
    index: int

    def __str__(self) -> str:
        return f"{self.name}:{self.seed}:{self.index}"


@dataclass
class Report:
    """What happened in a case."""

    case: Case
    done: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    failures: list[list[str]] = field(default_factory=list)
    last: str = ""  # line of stderr
    seconds: float = 0.0

    def __str__(self) -> str:
        kinds = "; ".join(f"{kind}: {text}" for kind, text in self.failures) or "as promised"
        what, commands = "; ".join(self.done), "; then ".join(self.commands)
        again = f"python -m benchmarks.attack --only {self.case}"
        return f"{self.case}  {kinds}\n    done: {what}\n    ran: {commands}\n    last: {self.last}\n    again: {again}"


def play(case: Case, material: Material, here: Path, seconds: float = SECONDS, verbose: bool = False) -> Report:
    """Play a case in this process."""
    here.mkdir(parents=True)
    stage = Stage(random.Random(str(case)), material, here, seconds)
    began = time.monotonic()
    try:
        CLASSES[case.name](stage)
    except Exception as error:  # a mistake of the attack's
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}, {Path(where.filename).name}:{where.lineno}"
        stage.fail("attack itself", text)
    if verbose:
        for outcome in stage.outcomes:
            print(f"$ {outcome.command}\n{outcome.out[-3000:]}{outcome.err[-6000:]}exit code {outcome.code}\n")
    return Report(
        case,
        stage.done,
        [outcome.command for outcome in stage.outcomes],
        [list(failure) for failure in stage.failures],
        stage.outcomes[-1].last if stage.outcomes else "",
        time.monotonic() - began,
    )


def play_all(
    cases: Iterator[Case], material: Material, scratch: Path, workers: int = 2, seconds: float = SECONDS
) -> Iterator[Report]:
    """Play cases, each in a process of its own, some at a time; in the order in which they end."""
    running: dict[int, tuple[Case, Path, float]] = {}
    exhausted = False
    while running or not exhausted:
        while not exhausted and len(running) < workers:
            case = next(cases, None)
            if case is None:
                exhausted = True
                break
            here = scratch / f"{case.name}-{case.seed}-{case.index}"
            running[_fork(case, material, here, seconds)] = (case, here, time.monotonic())
        time.sleep(0.003)
        for pid in list(running):
            case, here, began = running[pid]
            late = time.monotonic() - began > LONGEST_CASE
            if late:
                os.kill(pid, 9)
            if os.waitpid(pid, 0 if late else os.WNOHANG)[0]:
                del running[pid]
                yield _collect(case, here, time.monotonic() - began)


def _fork(case: Case, material: Material, here: Path, seconds: float) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            report = play(case, material, here / "here", seconds)
            text = json.dumps([report.done, report.commands, report.failures, report.last, report.seconds])
            (here / "report").write_text(text)
        finally:
            os._exit(0)
    return pid


def _collect(case: Case, here: Path, seconds: float) -> Report:
    try:
        report = Report(case, *json.loads((here / "report").read_text()))
    except OSError:
        report = Report(case, failures=[["attack itself", "the case's process died"]], seconds=seconds)
    shutil.rmtree(here, ignore_errors=True)
    return report


def sample(classes: Sequence[str], seed: int, count: int) -> Iterator[Case]:
    """So many cases of each class."""
    return (Case(name, seed, index) for index in range(count) for name in classes)


def fair(classes: Sequence[str], seed: int, until: float, spent: Counter[str], first: int = 0) -> Iterator[Case]:
    """Cases of all classes, the next of the class that has had the least time, until a moment."""
    index = dict.fromkeys(classes, first)
    while time.monotonic() < until:
        name = min(classes, key=lambda name: (spent[name] + 0.5 * (index[name] - first), classes.index(name)))
        yield Case(name, seed, index[name])
        index[name] += 1


def scratch_folder() -> Path:
    """A new folder, in memory where there is room for it."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30
    return Path(tempfile.mkdtemp(prefix="attack-", dir=memory if roomy else None))


def prepared(folder: Path, all_commands: bool) -> Material:
    """The material, with the results of all commands or those that are needed, and this process ready to be forked."""
    material = build(folder, COMMANDS if all_commands else ())
    gc.collect()
    gc.freeze()  # else each fork would copy the pages of every object
    return material


def main() -> int:
    options = _parser().parse_args()
    scratch = scratch_folder()
    try:
        material = prepared(scratch / "material", not options.only and not options.cases)
        if options.only:
            name, seed, index = options.only.split(":")
            pid = os.fork()  # mounts of a case are its process's own
            if pid == 0:
                report = play(
                    Case(name, int(seed), int(index)), material, scratch / "here", options.seconds, verbose=True
                )
                print(report, flush=True)
                os._exit(int(bool(report.failures)))
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return _attack(options, material, scratch)
    finally:
        if options.keep:
            print(f"kept {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)


def _attack(options: argparse.Namespace, material: Material, scratch: Path) -> int:
    classes = options.classes.split(",") if options.classes else list(CLASSES)
    began = time.monotonic()
    spent: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    failed: dict[str, Counter[str]] = {name: Counter() for name in classes}
    if options.cases:
        chosen = sample(classes, options.seed, options.cases)
    else:
        chosen = fair(classes, options.seed, began + 60 * options.minutes, spent, options.first)
    for report in play_all(chosen, material, scratch, options.workers, options.seconds):
        name = report.case.name
        spent[name] += report.seconds
        cases[name] += 1
        failed[name].update({kind for kind, _ in report.failures})
        if report.failures:
            print(report, flush=True)
    print(table(classes, cases, failed))
    bad = sum(sum(found.values()) for found in failed.values())
    if options.cases:
        return int(bad > 0)
    publish(
        "attack",
        {
            "ratio": float(bad),
            "goal": 0.0,
            "better": "lower",
            "timed": "cases in which the promise of docs/reliability.md was broken",
            "cases": {name: cases[name] for name in classes},
            **{KINDS[kind].replace(" ", "_"): sum(f[kind] for f in failed.values()) for kind in KINDS},
            "minutes": (time.monotonic() - began) / 60,
            "seed": options.seed,
        },
    )
    return int(bad > 0)


def table(classes: Sequence[str], cases: Counter[str], failed: dict[str, Counter[str]]) -> str:
    """Class, cases, and the number of cases that failed in each way."""
    kinds = {**KINDS, "attack itself": "mistakes of the attack"}
    kinds = {kind: title for kind, title in kinds.items() if kind in KINDS or any(f[kind] for f in failed.values())}
    rows = [["class", "cases", *kinds.values()]]
    rows += [[name, str(cases[name]), *(str(failed[name][kind]) for kind in kinds)] for name in classes]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    pairs = [[(cell, width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join(
        "  ".join([cells[0][0].ljust(cells[0][1]), *(c.rjust(w) for c, w in cells[1:])]) for cells in pairs
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of attacking (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (%(default)s)")
    parser.add_argument("--cases", type=int, default=0, help="of each class, instead of minutes; publishes nothing")
    parser.add_argument("--first", type=int, default=0, help="index of the first case of each class (%(default)s)")
    parser.add_argument("--classes", help=f"some of {','.join(CLASSES)}; default: all")
    parser.add_argument("--only", metavar="CLASS:SEED:INDEX", help="repeat one case, and print what it prints")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time (%(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="until a command hangs (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="do not remove the scratch folder")
    return parser


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the libraries that were imported for the forks need no farewell
