"""Run a command of protonce in a fork of this process, which has imported everything, within limits."""

import atexit
import contextlib
import ctypes
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SECONDS = 30.0  # until a command that has not ended counts as hanging
PATIENCE = 10  # times as long on the clock: other processes may have had the processor
ROOM = 3 << 30  # bytes of memory beyond those of this process
LARGEST_FILE = 1 << 30  # bytes
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REMOUNT, MS_REC, MS_PRIVATE = 0x20, 0x4000, 0x40000


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    command: str
    code: int  # exit code; -N: died by signal N
    hung: bool
    killed: bool  # by the case itself, on purpose
    out: str
    err: str
    seconds: float

    @property
    def last(self) -> str:
        """The last line that was printed to stderr."""
        lines = self.err.strip().splitlines()
        return lines[-1][:300] if lines else ""


def run(
    arguments: Sequence[str],
    here: Path,
    *,
    seconds: float = SECONDS,
    room: int = ROOM,
    kill_after: float | None = None,
    before: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run `protonce ARGUMENTS` in the folder `here`, with `here/.tmp` as TMPDIR.

    Args:
        arguments: of the command line.
        here: the working directory.
        seconds: of processor time, or of waiting, after which it is killed and counts as hanging.
        room: bytes of memory that it may have in addition to those of this process.
        kill_after: seconds after which to kill it with SIGKILL, on purpose.
        before: called in the new process.
        environment: variables to set in the new process.
    """
    (here / ".tmp").mkdir(exist_ok=True)
    files = [here.parent / f"{here.name}.{name}" for name in ("out", "err")]
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _command(arguments, here, files, room, before, environment or {})
    with contextlib.suppress(OSError):  # both do it: whoever is first, the group is there before it is killed
        os.setpgid(pid, pid)
    hung, killed, status = False, False, None
    watch = _Watch(pid, seconds)
    while status is None:
        found, code = os.waitpid(pid, os.WNOHANG)
        if found:
            status = code
            break
        spent = time.monotonic() - began
        if kill_after is not None and spent >= kill_after and not killed:
            killed = True
            _kill_group(pid)
        elif not hung and watch.hangs():
            hung = True
            _kill_group(pid)
        time.sleep(0.002 if spent < 0.2 else 0.01)
    _kill_group(pid)  # workers that have outlived it
    out, err = (_text(file) for file in files)
    exit_code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    killed = killed and exit_code == -signal.SIGKILL
    return Outcome(shown(arguments), exit_code, hung, killed, out, err, time.monotonic() - began)


def shown(arguments: Sequence[str]) -> str:
    """The command as a line of text."""
    words = (ascii(a) if not a.isprintable() or " " in a or not a else a for a in arguments)
    return " ".join(word if len(word) <= 120 else word[:117] + "..." for word in ("protonce", *words))


def _command(
    arguments: Sequence[str],
    here: Path,
    files: Sequence[Path],
    room: int,
    before: Callable[[], None],
    environment: Mapping[str, str],
) -> None:
    """What the new process does; it never returns."""
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        for number, file in zip((1, 2), files, strict=True):
            opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(opened, number)
            os.close(opened)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        os.chdir(here)
        os.environ.update({"TMPDIR": str(here / ".tmp"), "COLUMNS": "200", **environment})
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_size() + room,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
        before()
        from protonce.cli import main

        try:
            code = main(list(arguments))
        except SystemExit as error:  # --help and --version
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc(limit=-25)
        gc.collect()  # temporary files are removed when what uses them is
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _size() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


class _Watch:
    """Tells whether a process and those that it has started hang: a busy machine is no reason."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.pid, self.seconds = pid, seconds
        self.began = self.looked = self.moved = time.monotonic()
        self.computed = 0.0

    def hangs(self) -> bool:
        """Whether they have computed for too long, or have done nothing at all for as long."""
        now = time.monotonic()
        if now - self.looked < 0.5:
            return False
        self.looked, computed = now, self._computed()
        if computed > self.computed + 0.01:
            self.moved, self.computed = now, computed
        waits = now - self.moved >= self.seconds
        return waits or computed >= self.seconds or now - self.began >= PATIENCE * self.seconds

    def _computed(self) -> float:
        """Seconds of processor time of the group of processes."""
        found = 0
        for place in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = place.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[2] == str(self.pid):
                found += sum(int(ticks) for ticks in fields[11:15])
        return found / os.sysconf("SC_CLK_TCK")


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _text(file: Path) -> str:
    if not file.exists():  # it was killed before
        return ""
    with file.open("rb") as opened:
        return opened.read(4_000_000).decode(errors="backslashreplace")


class Disk:
    """A small disk: a tmpfs in a mount namespace of this process alone, which ends with it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self._mount(b"none", str(place).encode(), b"tmpfs", 0, b"size=1g")

    def leave(self, room: int) -> None:
        """Let this many bytes be free, in whole pages."""
        usage = shutil.disk_usage(self.place)
        size = max(usage.used + room, 4096)
        self._mount(b"none", str(self.place).encode(), b"tmpfs", MS_REMOUNT, b"size=%d" % size)

    def _mount(self, *arguments: object) -> None:
        if self.libc.mount(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "mount")


def own_mounts() -> bool:
    """Give this process mounts of its own; whether that is possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 and libc.unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0:
        return False
    return bool(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0)
