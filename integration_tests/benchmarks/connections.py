"""Bytes on the connections of processes, as the kernel counts them."""

import re
import subprocess
from collections.abc import Collection

_SENT = re.compile(r"\bbytes_sent:(\d+)")
_PID = re.compile(r"\bpid=(\d+)")


def sent_bytes(pids: Collection[int]) -> int:
    """Returns the bytes that the open TCP connections of processes have sent.

    Needs the program `ss` of iproute2. Bytes that are sent again count again.

    Args:
        pids: The processes. Connections of other processes do not count.
    """
    listed = subprocess.run(
        ["ss", "--tcp", "--info", "--processes", "--no-header", "--oneline"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    total = 0
    for line in listed.splitlines():
        owners = {int(pid) for pid in _PID.findall(line)}
        sent = _SENT.search(line)
        if sent is not None and not owners.isdisjoint(pids):
            total += int(sent[1])
    return total
