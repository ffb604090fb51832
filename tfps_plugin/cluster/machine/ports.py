"""Network ports reserved without a race, and this machine's own address."""

import errno
import os
import socket
from collections.abc import Iterable
from collections.abc import Mapping
from types import TracebackType
from typing import Self

LOOPBACK = "127.0.0.1"
REUSE_VARIABLE = "TF_GRPC_REUSE_PORT"
"""The environment variable that has TensorFlow's servers share a port."""

# An answer from this machine takes microseconds.
_CONNECT_SECONDS = 1.0


class ReservedPort:
    """A free port that nobody but us can get while it is reserved.

    A socket is bound to it and never listens, so it receives nothing, but the
    system gives the port to no other program. Our own servers share it: they
    (and this socket) set SO_REUSEPORT, which TensorFlow's server does where
    the environment says `TF_GRPC_REUSE_PORT=1`. A task that is restarted
    hence finds its port free.

    Attributes:
        port: The port's number.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # TensorFlow's server listens on all interfaces: the port must be
            # free on all of them.
            self._socket.bind(("0.0.0.0", 0))
        except BaseException:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Gives the port back; may be called again."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def why_unusable(port: int, environment: Mapping[str, str]) -> str | None:
    """Tries whether a server of TensorFlow's could listen on a port now.

    Args:
        port: The port's number.
        environment: The environment variables: the server may share the port
            with one that is reserved for it, but not with another server.

    Returns:
        Why not, in few words; None if it could.
    """
    is_shared = environment.get(REUSE_VARIABLE) == "1"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as attempt:
        # As the server does: connections of one that has ended do not matter.
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
    """The address by which other machines reach this one.

    It is the address of the network interface that leads to the first
    endpoint on another machine. Nothing is sent.

    Args:
        endpoints: Host and port of tasks of the cluster.

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
    """Whether this IP address means "this machine" to whoever uses it."""
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
