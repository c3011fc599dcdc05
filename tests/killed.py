"""Runs that are killed with SIGKILL at random moments and resumed until they end, as often as is asked for.

python tests/killed.py PHOTOS OUT WORKERS RUNS SYSTEM [SYSTEM ...]

RUNS of each system. Each attempt is a fork of this process, so that torch is imported once. Prints for each run at
which moments it was killed, and ends with exit code 1 if one of them did not end as the undisturbed one did.
"""

import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path

import torch

import protonce
from conftest import SMALL

SETTINGS = {**SMALL, "batch_size": 8, "epochs": 4, "checkpoint_minutes": 0, "quiet": True}
OWN = {"pcl": {"clusters": [3], "warmup_epochs": 1}, "jigsaw": {"image_size": 24}, "pirl": {"image_size": 24}}
RESULTS = ("encoder.safetensors", "prototypes.npz", "assignments/0004.npz")


def fork(train, out, before=lambda: None):
    """A process that trains, from the last checkpoint if there is one."""
    pid = os.fork()
    if pid == 0:
        before()
        train(out, resume=True)
        os._exit(0)
    return pid


def killed(pid):
    """Whether the process was killed, once it has ended; anything but that or success is an error."""
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), f"status {status}"
    return status == signal.SIGKILL


def die_in_a_checkpoint(number):
    """Be killed when half of the checkpoint of this number is on the disk."""
    fsync, seen = os.fsync, []

    def fsync_or_die(descriptor):
        if ".last.pt.part" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            seen.append(descriptor)
            if len(seen) == number:
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = fsync_or_die


def attempts(train, folder, rng, length, number):
    """Kill a run up to three times, and then let it end; the moments at which it was killed.

    The first time in the checkpoint of this number; 0: at a random moment.
    """
    moments = []
    if number:
        assert killed(fork(train, folder, before=lambda: die_in_a_checkpoint(number)))
        moments.append(f"in checkpoint {number}")
    while True:
        pid = fork(train, folder)
        delay = rng.uniform(0, length)
        if len(moments) < 3:
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
        if not killed(pid):
            return moments
        moments.append(f"after {delay:.2f} s")


def kill_and_resume(train, out, rng, runs):
    """Whether all runs of a system end as the undisturbed one does."""
    for name in ("first", "whole"):  # the first imports what is imported where it is used
        began = time.monotonic()
        train(out / name)
        length = time.monotonic() - began
    good = True
    for run in range(runs):
        moments, tries = [], 0
        while not moments:  # it may have ended before it was killed
            folder, tries = out / f"run{run}-{tries}", tries + 1
            moments = attempts(train, folder, rng, length, 1 + run % 10 if run % 4 == 0 else 0)
        same = all((folder / name).read_bytes() == (out / "whole" / name).read_bytes() for name in RESULTS)
        epochs = [record["epoch"] for record in protonce.load(folder).metrics]
        moments = ", ".join(moments)
        print(f"{out.name} {run}: killed {moments}; {'the same' if same else 'NOT the same'}, epochs {epochs}")
        good &= same and epochs == [1, 2, 3, 4]
    return good


def main(photos, out, workers, runs, *systems):
    torch.set_num_threads(1)
    rng = random.Random(int(workers))
    good = True
    for system in systems:
        settings = {**SETTINGS, **OWN.get(system, {}), "method": system, "workers": int(workers)}
        good &= kill_and_resume(partial(protonce.train, photos, **settings), Path(out) / system, rng, int(runs))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
