"""Trainings in processes of their own, forked from one that has imported what training needs. Loads no torch."""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

FORKS = "forkserver" in multiprocessing.get_all_start_methods()  # Windows has none: each process imports for itself
IMPORTED = ["protonce.cli.train", "protonce.api", "protonce.kmeans"]


def warm_up() -> None:
    """Let the process that trainings are forked from import what they need, while this process does other things."""
    if FORKS:
        multiprocessing.get_context("forkserver").set_forkserver_preload(IMPORTED)
        forkserver.ensure_running()


def start(words: Sequence[str], log: Path, one_thread: bool) -> BaseProcess:
    """Start `protonce` with these words; its exit code is that of the process.

    Args:
        words: command and arguments.
        log: the file for what it prints.
        one_thread: whether it computes with a single thread, as trainings side by side do.
    """
    arguments = (list(words), log, one_thread)
    process: BaseProcess
    if FORKS:
        process = multiprocessing.get_context("forkserver").Process(target=_run, args=arguments)
    else:
        process = multiprocessing.get_context("spawn").Process(target=_run, args=arguments)
    process.start()
    return process


def _run(words: list[str], log: Path, one_thread: bool) -> None:
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if one_thread:
        import torch
        from threadpoolctl import threadpool_limits

        os.environ["OMP_NUM_THREADS"] = "1"  # for libraries that are loaded from here on; the others are told
        torch.set_num_threads(1)
        threadpool_limits(1)
    sys.argv = ["protonce", *words]
    runpy.run_module("protonce", run_name="__main__", alter_sys=True)
