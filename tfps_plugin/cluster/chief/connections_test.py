"""Tests, with real sockets, of the connections that are broken."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tfps_plugin.cluster.chief import connections

_SECONDS = 10.0


class _Server:
    """Server that listens and accepts connections."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(
            socket.create_server(("127.0.0.1", 0))
        )
        self.port: int = self._listener.getsockname()[1]

    def connect(self, family: int = socket.AF_INET) -> "_Connection":
        here = self._stack.enter_context(socket.socket(family))
        prefix = "::ffff:" if family == socket.AF_INET6 else ""
        here.connect((f"{prefix}127.0.0.1", self.port))
        there, _ = self._listener.accept()
        return _Connection(here, self._stack.enter_context(there))


class _Connection:
    def __init__(self, here: socket.socket, there: socket.socket) -> None:
        self.here, self.there = here, there
        for each in (here, there):
            each.settimeout(_SECONDS)

    def carries(self) -> bool:
        """Returns whether data from the other end still arrive."""
        try:
            self.there.sendall(b"x")
            return self.here.recv(1) == b"x"
        except (BrokenPipeError, ConnectionResetError):
            return False


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


def test_all_to_one_server_and_no_others(stack: contextlib.ExitStack) -> None:
    silent, well = _Server(stack), _Server(stack)
    broken = [silent.connect(), silent.connect()]
    kept = [well.connect(), well.connect()]
    assert connections.break_to([f"127.0.0.1:{silent.port}"]) == 2
    assert not any(each.carries() for each in broken)
    assert all(each.carries() for each in kept)
    # The server at that port goes on, even in this process.
    assert silent.connect().carries()


def test_a_call_that_waits_ends(stack: contextlib.ExitStack) -> None:
    server = _Server(stack)
    connection = server.connect()
    connections.break_to([f"127.0.0.1:{server.port}"])
    # Without an end of the connection, it would wait ten seconds and raise.
    assert connection.here.recv(1) == b""


def test_host_names_and_ipv6_sockets(stack: contextlib.ExitStack) -> None:
    server = _Server(stack)
    connection = server.connect(socket.AF_INET6)
    assert connection.carries()
    assert connections.break_to([f"localhost:{server.port}"]) == 1
    assert not connection.carries()


def test_the_same_port_of_another_host(stack: contextlib.ExitStack) -> None:
    server = _Server(stack)
    connection = server.connect()
    assert connections.break_to([f"127.0.0.2:{server.port}"]) == 0
    assert connection.carries()


def test_a_host_without_an_address_is_left_out(
    stack: contextlib.ExitStack,
) -> None:
    server = _Server(stack)
    connection = server.connect()
    addresses = ["gone.invalid:1", f"127.0.0.1:{server.port}"]
    assert connections.break_to(addresses) == 1
    assert not connection.carries()


def test_nobody() -> None:
    assert connections.break_to([]) == 0
