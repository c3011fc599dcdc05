"""Memory that this process can get. Loads no torch."""

import os
from contextlib import suppress
from pathlib import Path

from protonce.errors import UserError

FEWEST = 1 << 29  # bytes; torch alone takes this much, and some libraries end the process where they get less
MEMINFO = Path("/proc/meminfo")
CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_memory() -> None:
    """Check that there is enough memory to begin with.

    Raises:
        UserError: there is not.
    """
    available = host_memory()
    if available is not None and available < FEWEST:
        raise UserError(
            f"out of memory: only {available >> 20} MB are available, and protonce needs at least {FEWEST >> 20} MB; "
            "close other programs, or raise the limit"
        )


def host_memory() -> int | None:
    """Bytes of memory that this process can get at most; None: not known."""
    found = [*_system_memory(), *_container_limit(), *_address_space()]
    return min(found, default=None)


def _system_memory() -> list[int]:
    with suppress(OSError, ValueError, KeyError, IndexError):
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return [1024 * (int(lines["MemAvailable"].split()[0]) + int(lines["SwapFree"].split()[0]))]
    with suppress(AttributeError, OSError, ValueError):  # macOS
        return [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    return []


def _container_limit() -> list[int]:
    found = []
    for file in CGROUPS:
        with suppress(OSError, ValueError):  # "max"
            found.append(int(file.read_text()))
    return found


def _address_space() -> list[int]:
    """What `ulimit -v` leaves."""
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            return [max(limit - pages * resource.getpagesize(), 0)]
    return []
