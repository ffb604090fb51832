"""Breaks the connections of this process to a task.

A call to a task that is stopped or unreachable waits until its connection
ends: TensorFlow cannot end a call, and a change of the cluster waits for all
calls. gRPC detects this by itself, but only after minutes if no data were in
flight when the task fell silent (`cluster.environment`). If the connection is
broken here, all calls on it fail at once, as they do when a process dies.
"""

import ipaddress
import os
import pathlib
import socket
from collections.abc import Callable
from collections.abc import Iterable

from tfps_plugin.cluster.calls import bounded_calls
from tfps_plugin.cluster.spec import split_address

_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_DESCRIPTORS = pathlib.Path("/dev/fd")
# The machine mostly has names in its cache, from when it connected.
_LOOK_UP_SECONDS = 5.0


def break_to(addresses: Iterable[str]) -> int:
    """Breaks the connections to servers, but not those from them.

    Args:
        addresses: Each `"host:port"`. Skips hosts that have no address
            anymore, or whose names are not resolved within seconds.

    Returns:
        Number of broken connections.

    Threading: any thread.
    """
    outcomes = bounded_calls.call_all(_look_up, addresses, _LOOK_UP_SECONDS)
    servers = set().union(*(each.value or () for each in outcomes.values()))
    return _break_where(servers.__contains__)


def _look_up(address: str) -> set[tuple[_IpAddress, int]]:
    host, port = split_address(address)
    return {
        (_plain(str(found[0])), port)
        for *_, found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    }


def _plain(address: str) -> _IpAddress:
    """Returns the canonical form of an address."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        # gRPC connects by IPv6 where it can.
        return parsed.ipv4_mapped
    return parsed


def _break_where(
    is_meant: Callable[[tuple[_IpAddress, int]], bool],
) -> int:
    num_broken = 0
    for entry in os.listdir(_DESCRIPTORS):
        try:
            # Our own copy: the number may soon belong to another file.
            descriptor = os.dup(int(entry))
        except OSError:
            continue
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:
            # Not a socket.
            os.close(descriptor)
            continue
        with connection:
            num_broken += _break_if(connection, is_meant)
    return num_broken


def _break_if(
    connection: socket.socket,
    is_meant: Callable[[tuple[_IpAddress, int]], bool],
) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        host, port, *_ = connection.getpeername()
        if not is_meant((_plain(host), port)):
            return False
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It listens, or has ended by itself.
        return False
    return True
