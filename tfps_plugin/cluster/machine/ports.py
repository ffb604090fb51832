"""Network ports reserved without a race, and this machine's address."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

LOOPBACK = "127.0.0.1"
REUSE_VARIABLE = "TF_GRPC_REUSE_PORT"
"""The environment variable that lets TensorFlow's servers share a port."""

# An answer from this machine takes microseconds.
_CONNECT_SECONDS = 1.0


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserves a free port for as long as the context is open.

    A socket is bound to the port and never listens. It receives nothing, but
    the system gives the port to no other program. Our own servers share it:
    they (and this socket) set SO_REUSEPORT, which TensorFlow's server does if
    the environment has `TF_GRPC_REUSE_PORT=1`. So a task that is restarted
    finds its port free.

    Yields:
        The port's number.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # TensorFlow's server listens on all interfaces: the port must be free
        # on all of them.
        holder.bind(("0.0.0.0", 0))
        yield holder.getsockname()[1]


def why_unusable(port: int, environment: Mapping[str, str]) -> str | None:
    """Tries to listen on a port as a server of TensorFlow's would.

    Args:
        port: The port's number.
        environment: The environment variables. They say whether the server may
            share the port with the socket that reserves it; it may never share
            it with another server.

    Returns:
        The reason why it cannot, in a few words; None if it can.
    """
    is_shared = environment.get(REUSE_VARIABLE) == "1"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as attempt:
        # As the server does: connections of an earlier server do not matter.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            attempt.bind(("0.0.0.0", port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                return None  # TensorFlow may know better.
            return os.strerror(error.errno)
    if is_shared and _is_served(port):
        return "another server listens on it"
    return None


def _is_served(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), _CONNECT_SECONDS) as it:
            # Without a server, a socket may by chance connect to itself.
            return bool(it.getsockname() != it.getpeername())
    except OSError:
        return False


def own_host_towards(endpoints: Iterable[tuple[str, int]]) -> str:
    """Returns the address by which other machines reach this one.

    It is the address of the network interface that leads to the first
    endpoint on another machine. Nothing is sent.

    Args:
        endpoints: Hosts and ports of the cluster's tasks.

    Returns:
        An IP address; `127.0.0.1` if all endpoints are on this machine or
        none can be resolved.
    """
    for host, port in endpoints:
        own = _own_host_on_route(host, port)
        if own is not None and not is_loopback(own):
            return own
    return LOOPBACK


def is_loopback(host: str) -> bool:
    """Returns whether an IP address means "this machine" on every machine."""
    return host.startswith("127.") or host == "::1"


def _own_host_on_route(host: str, port: int) -> str | None:
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in candidates:
        try:
            with socket.socket(family, kind, protocol) as route:
                # Connecting a datagram socket only picks the route.
                route.connect(address)
                return str(route.getsockname()[0])
        except OSError:
            continue
    return None
