"""Memory that a process can still get."""

import resource

from protonce import free_memory
from protonce.cli import main


def test_the_memory_of_the_machine(tmp_path, monkeypatch, capsys):
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:  5000 kB\nSwapFree:   1000 kB\n")
    monkeypatch.setattr(free_memory, "MEMINFO", meminfo)
    monkeypatch.setattr(free_memory, "CGROUPS", (limit,))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert free_memory.host_memory() == 6000 * 1024, "no container"
    limit.write_text("max\n")
    assert free_memory.host_memory() == 6000 * 1024, "a container without a limit"
    limit.write_text("4096\n")
    assert free_memory.host_memory() == 4096
    limit.write_text("max\n")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (10**6, 10**6))
    assert free_memory.host_memory() == 0, "the address space is used up"
    assert main(["check", str(tmp_path)]) == 2
    assert "only 0 MB are available, and protonce needs at least 512 MB" in capsys.readouterr().err
