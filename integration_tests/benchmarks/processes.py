"""Processor time and memory of processes."""

import os
import pathlib
from collections.abc import Iterable


def cpu_seconds(pids: Iterable[int]) -> float:
    """Returns the processor time of processes so far, in total."""
    return sum(sum(user_and_system_seconds(pid)) for pid in pids)


def user_and_system_seconds(pid: int) -> tuple[float, float]:
    """Returns a process's processor time so far, in user mode and kernel."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text()
    # The fields follow the name, which may contain spaces.
    user, system = fields.rpartition(")")[2].split()[11:13]
    tick = os.sysconf("SC_CLK_TCK")
    return int(user) / tick, int(system) / tick


def resident_bytes(pid: int) -> int:
    """Returns the memory that a process has now, in bytes."""
    pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def with_descendants(pid: int) -> list[int]:
    """Returns a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found
