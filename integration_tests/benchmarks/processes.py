"""What processes have computed."""

import os
import pathlib
from collections.abc import Iterable


def cpu_seconds(pids: Iterable[int]) -> float:
    """Of these processes so far, together."""
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text()
        # After the name, which may have blanks: user and system time.
        user, system = fields.rpartition(")")[2].split()[11:13]
        ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


def with_descendants(pid: int) -> list[int]:
    """A process and all that it, and they, have started."""
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
