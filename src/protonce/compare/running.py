"""Run the cells of a comparison in processes of their own, several at a time. Loads no torch."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from protonce.compare.cells import Cell
from protonce.errors import UserError


@dataclass(frozen=True)
class Machine:
    """Cells that run at once, the threads of each, and the GPUs that they share; 0: none."""

    jobs: int
    threads: int
    gpus: int

    def environment(self, slot: int) -> dict[str, str]:
        """Environment of the process in a slot."""
        own = {"OMP_NUM_THREADS": str(self.threads)}
        if self.gpus > 1:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(self.gpus)))
            own["CUDA_VISIBLE_DEVICES"] = visible.split(",")[slot % self.gpus]
        return {**os.environ, **own}


def find_machine(jobs: int | None, gpus: int) -> Machine:
    """One cell for each GPU, or for each core; or as many as asked for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = jobs or gpus or cores
    return Machine(jobs, max(cores // jobs, 1), gpus)


def run_cells(
    cells: Iterable[Cell], scores: Sequence[str], folder: Path, machine: Machine, say: Callable[[str], None]
) -> None:
    """Train and score cells, in this order, as many at a time as the machine takes.

    A cell that fails does not stop the others.

    Raises:
        UserError: some failed; it says the reason of the first. Those that are done are kept.
    """
    waiting, failed = list(cells), {}
    running: dict[int, _Process] = {}
    total, done = len(waiting), 0
    try:
        while waiting or running:
            for slot in range(machine.jobs):
                if waiting and slot not in running:
                    running[slot] = _Process(waiting.pop(0), scores, folder, machine.environment(slot))
            for slot, process in list(running.items()):
                if process.code is None:
                    continue
                del running[slot]
                done += 1
                if process.code:
                    failed[process.cell.name] = process.reason
                how = f"failed: {process.reason}" if process.code else f"took {time.monotonic() - process.began:.0f} s"
                say(f"{done} of {total}: {process.cell.row}, seed {process.cell.seed}, {how}")
            time.sleep(0.1)
    finally:
        for process in running.values():
            process.stop()
    if failed:
        name, reason = next(iter(failed.items()))
        raise UserError(f"{len(failed)} of {total} trainings failed; {name}: {reason}")


class _Process:
    """A cell in a process; what it prints goes to a log."""

    def __init__(self, cell: Cell, scores: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.cell, self.began = cell, time.monotonic()
        self.log = folder / "logs" / f"{cell.name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "protonce.compare.cell", str(folder)],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pipe.write(json.dumps({"cell": asdict(cell), "scores": list(scores)}).encode())

    @property
    def code(self) -> int | None:
        """Exit code, None while it runs."""
        return self.process.poll()

    @property
    def reason(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self.code}; see {self.log}"

    def stop(self) -> None:
        """Ask it to save a checkpoint and end."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
