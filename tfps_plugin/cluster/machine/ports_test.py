"""Tests of reserved ports, and of this machine's own address."""

import socket

import pytest

from tfps_plugin.cluster.machine import ports


def test_a_reserved_port_is_nobody_elses() -> None:
    with (
        ports.reserved_port() as reserved,
        socket.socket() as other,
        pytest.raises(OSError, match="in use"),
    ):
        other.bind((ports.LOOPBACK, reserved))


def test_our_own_server_may_listen_on_it_and_only_that_is_reached() -> None:
    with (
        ports.reserved_port() as reserved,
        socket.socket() as server,
    ):
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("0.0.0.0", reserved))
        server.listen()
        for _ in range(10):
            with socket.create_connection((ports.LOOPBACK, reserved), 5):
                server.accept()[0].close()


def test_nobody_listens_on_a_port_that_is_only_reserved() -> None:
    with (
        ports.reserved_port() as reserved,
        pytest.raises(ConnectionRefusedError),
    ):
        socket.create_connection((ports.LOOPBACK, reserved), 5)


def test_ports_differ_and_are_given_back() -> None:
    with ports.reserved_port() as first, ports.reserved_port() as second:
        assert first != second
    for port in (first, second):
        with socket.socket() as other:
            other.bind((ports.LOOPBACK, port))


def test_a_free_port_can_be_used() -> None:
    with ports.reserved_port() as port:
        # For the server that it is reserved for.
        assert ports.why_unusable(port, {ports.REUSE_VARIABLE: "1"}) is None
        assert "in use" in str(ports.why_unusable(port, {}))
    assert ports.why_unusable(port, {}) is None


def test_no_two_servers_share_a_reserved_port() -> None:
    with ports.reserved_port() as reserved, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("0.0.0.0", reserved))
        server.listen()
        reason = ports.why_unusable(reserved, {ports.REUSE_VARIABLE: "1"})
    assert reason == "another server listens on it"


def test_a_port_that_a_server_has_just_left_can_be_used() -> None:
    with socket.create_server((ports.LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((ports.LOOPBACK, port), 5) as client:
            # The side that closes first keeps the address for a minute.
            server.accept()[0].close()
            assert client.recv(1) == b""
    assert ports.why_unusable(port, {}) is None


@pytest.mark.parametrize(
    "endpoints",
    [[], [("127.0.0.1", 1)], [("localhost", 1)], [("no.invalid", 1)]],
)
def test_a_cluster_on_this_machine_uses_the_loopback(
    endpoints: list[tuple[str, int]],
) -> None:
    assert ports.own_host_towards(endpoints) == "127.0.0.1"


def test_a_cluster_elsewhere_gets_the_address_of_the_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes = {"here": "127.0.0.1", "there": "10.1.2.3", "nowhere": None}
    monkeypatch.setattr(
        ports, "_own_host_on_route", lambda host, port: routes[host]
    )
    endpoints = [("nowhere", 1), ("here", 1), ("there", 1)]
    assert ports.own_host_towards(endpoints) == "10.1.2.3"
