"""New processes for the tests, forked from one server that has imported protonce: only the first takes seconds."""

import multiprocessing
import os
import runpy
import sys
import tempfile
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["protonce.api", "protonce.cli", "protonce.kmeans", "pytest"])


def start(function, *arguments, **environment):
    """A process that calls a function of a module, with these variables added to the environment of the caller.

    `printed_by` returns what it has printed.
    """
    file = tempfile.NamedTemporaryFile(suffix=".txt")  # noqa: SIM115 (removed with the process)
    process = _server.Process(target=_call, args=(file.name, {**os.environ, **environment}, function, arguments))
    process.start()
    process.printed = file
    return process


def printed_by(process):
    return Path(process.printed.name).read_text()


def _call(output, environment, function, arguments):
    with open(output, "w") as file:  # noqa: PTH123
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        function(*arguments)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class Module:
    """`python -m MODULE WORD...` with what is used of `subprocess.Popen`, started by the server.

    Args:
        command: of Popen.
        env: of Popen.
        stdout: a file; what it prints as an error goes there too.
        stderr: the same file.
        stdin: None or `subprocess.PIPE`.
    """

    def __init__(self, command, *, env, stdout, stderr, stdin=None):
        _, flag, module, *words = command
        assert (flag, stderr) == ("-m", stdout)
        reader = None
        if stdin is not None:
            reader, writer = _server.Pipe(duplex=False)
            self.stdin = os.fdopen(os.dup(writer.fileno()), "wb")
            writer.close()
        arguments = (stdout.name, env, _run_module, (module, words, reader))
        self.process = _server.Process(target=_call, args=arguments)
        self.process.start()
        if reader is not None:
            reader.close()
        self.terminate, self.kill = self.process.terminate, self.process.kill

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def wait(self, timeout=None):
        self.process.join(timeout)
        return self.process.exitcode


def _run_module(module, words, reader):
    if reader is not None:
        os.dup2(reader.fileno(), 0)
        sys.stdin = os.fdopen(0, closefd=False)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def command(*words):
    """`protonce` with these words, to be started."""
    from protonce.cli import main

    sys.exit(main([*map(str, words)]))


def run_on_ranks(function, *arguments, world_size=2, timeout=300):
    """Call a function on ranks that find each other as those of torchrun do, by a store in the process above them."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    common = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "tests",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    ranks = [start(function, *arguments, **common, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(world_size)]
    try:
        running = list(ranks)
        while running:
            assert wait([rank.sentinel for rank in running], timeout), f"the ranks take more than {timeout} s"
            for rank in [rank for rank in running if not rank.is_alive()]:
                assert rank.exitcode == 0, printed_by(rank)
                running.remove(rank)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
