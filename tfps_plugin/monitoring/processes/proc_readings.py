"""Readings of this process: memory and its limit, bytes of its connections.

Linux only, as TensorFlow's servers are. What cannot be read is None.
"""

import contextlib
import os
import pathlib
import socket
import struct
from collections.abc import Iterator

_PROC = pathlib.Path("/proc")
_CONTROL_GROUPS = pathlib.Path("/sys/fs/cgroup")
# Of the kernel's `struct tcp_info`: `tcpi_bytes_acked` and
# `tcpi_bytes_received`, which it has had since Linux 4.1.
_TCP_INFO_BYTES = 136
_TCP_BYTES_AT = 120


def memory_bytes(proc: pathlib.Path = _PROC) -> int | None:
    """Returns the resident memory of this process."""
    try:
        resident = (proc / "self/statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(resident) * os.sysconf("SC_PAGE_SIZE")


def memory_limit_bytes(
    proc: pathlib.Path = _PROC, groups: pathlib.Path = _CONTROL_GROUPS
) -> int | None:
    """Returns the memory that this process may use.

    It is the smallest limit of its control groups (version 1 or 2), or else the
    memory of the machine.
    """
    limits = list(_group_limits(proc, groups))
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                limits.append(1024 * int(line.split()[1]))
    return min(limits, default=None)


def _group_limits(proc: pathlib.Path, groups: pathlib.Path) -> Iterator[int]:
    """Yields the limits of the control groups of this process."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            root, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = root / path.lstrip("/")
        # A limit of a group holds for all groups in it. In a container, the
        # path may be that of the machine outside; then the root is its own.
        for folder in (place, *place.parents):
            with contextlib.suppress(OSError, ValueError):
                yield int((folder / name).read_text())
            if folder == root:
                break


class Traffic:
    """Bytes of the TCP connections of this process, added up over time.

    Connections that begin and end between two readings are missed, and so is
    what others carry between the last reading and their end.

    Threading: one thread uses it.
    """

    def __init__(self) -> None:
        """Begins with what was carried so far."""
        # By connection: bytes received and sent at the last reading.
        self._seen: dict[str, tuple[int, int]] = {}
        self.received_bytes = 0
        self.sent_bytes = 0

    def read(self) -> None:
        """Adds what has been received and sent since the last reading."""
        found = dict(_connections())
        for name, (received, sent) in found.items():
            received_before, sent_before = self._seen.get(name, (0, 0))
            self.received_bytes += max(0, received - received_before)
            self.sent_bytes += max(0, sent - sent_before)
        self._seen = found


def _connections() -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields the bytes received and sent by each TCP connection."""
    for descriptor in os.listdir(_PROC / "self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(_PROC / "self/fd" / descriptor)
            if not name.startswith("socket:"):
                continue
            # A descriptor of our own: the other may be closed at any moment, or
            # be that of another connection by now.
            own = os.dup(int(descriptor))
            try:
                connection = socket.socket(fileno=own)
            except OSError:
                os.close(own)
                continue
            with connection:
                if os.readlink(_PROC / f"self/fd/{own}") != name:
                    continue
                info = connection.getsockopt(
                    socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES
                )
            if len(info) >= _TCP_INFO_BYTES:
                sent, received = struct.unpack_from("=QQ", info, _TCP_BYTES_AT)
                yield name, (received, sent)
