import contextlib
import http.client
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.monitoring.serving import job_sockets
from tfps_plugin.monitoring.serving import state_client
from tfps_plugin.monitoring.serving import state_server
from tfps_plugin.monitoring.serving.state_client import StateClient
from tfps_plugin.monitoring.serving.state_server import StateServer
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.testing import example_state

_LOCAL = ("127.0.0.1", 0)


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    # Other jobs of this machine are not seen.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextlib.contextmanager
def _serving(**options: Any) -> Iterator[StateServer]:
    server = StateServer(**{"state": example_state, **options})
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _client(server: StateServer, **options: Any) -> StateClient:
    assert server.port is not None
    return StateClient(("127.0.0.1", server.port), **options)


def test_a_job_of_this_machine_is_found_by_itself() -> None:
    with _serving():
        assert state_client.of_this_machine().state() == example_state()
        assert (
            state_client.of_this_machine(os.getpid()).state() == example_state()
        )
    assert not job_sockets.running()
    with pytest.raises(errors.JobUnreachableError, match="programs that run"):
        state_client.of_this_machine()


def test_only_its_user_can_open_the_socket() -> None:
    with _serving():
        (path,) = job_sockets.running().values()
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_an_address_answers_as_well() -> None:
    with _serving(address=_LOCAL) as server:
        client = _client(server)
        assert client.state() == example_state()
        assert client.get("/healthz") == b"ok\n"
        assert b"tfps_steps_total 24200.0" in client.get("/metrics")


def test_answers_are_valid_http() -> None:
    with _serving(address=_LOCAL) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port or 0)
        with contextlib.closing(connection):
            connection.request("GET", "/state")
            answer = connection.getresponse()
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("application/json")
            assert json.loads(answer.read())["program"] == "train.py"


def test_without_the_token_nothing_is_told() -> None:
    with _serving(address=_LOCAL, token="secret") as server:
        assert _client(server, token="secret").state() == example_state()
        for token in (None, "", "Secret", "secret2"):
            for path in ("/state", "/metrics", "/healthz", "/"):
                with pytest.raises(errors.JobUnreachableError, match="401"):
                    _client(server, token=token).get(path)
        # Who can open the socket is the user of the job.
        assert state_client.of_this_machine().state() == example_state()


def test_unknown_paths_are_named() -> None:
    with (
        _serving(address=_LOCAL) as server,
        pytest.raises(errors.JobUnreachableError, match=r"404.*/state"),
    ):
        _client(server).get("/dashboard")


def test_a_port_that_is_taken_is_an_error_with_the_address() -> None:
    with socket.create_server(_LOCAL) as taken:
        port = taken.getsockname()[1]
        server = StateServer(example_state, address=("127.0.0.1", port))
        with pytest.raises(
            errors.ClusterConfigurationError, match=f"127.0.0.1:{port}"
        ):
            server.start()
        server.stop()


def test_a_viewer_that_is_gone_or_no_program_of_ours_hurts_nobody() -> None:
    with _serving(address=_LOCAL) as server:
        port = server.port or 0
        socket.create_connection(("127.0.0.1", port)).close()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
            assert b"400" in connection.recv(1000)
        assert _client(server).state() == example_state()


def _asked_as(server: StateServer, host: str) -> int:
    """Returns the status of an answer to a viewer that calls it `host`."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port or 0)
    with contextlib.closing(connection):
        connection.request("GET", "/state", headers={"Host": host})
        return connection.getresponse().status


def test_a_page_that_has_a_name_for_this_machine_gets_nothing() -> None:
    with _serving(address=_LOCAL) as server:
        for host in ("localhost:8470", "127.0.0.1", "127.0.0.2:1", "[::1]:1"):
            assert _asked_as(server, host) == 200, host
        for host in ("evil.example", "evil.example:80", "10.0.0.1", "[:", "x["):
            assert _asked_as(server, host) == 403, host
    # A browser knows no token.
    with _serving(address=_LOCAL, token="secret") as server:
        assert _client(server, token="secret").state() == example_state()
        assert _asked_as(server, "evil.example") == 401


def test_a_state_that_cannot_be_told_is_no_end_of_the_job() -> None:
    def state() -> ClusterState:
        raise ReferenceError("the strategy is gone")

    with _serving(address=_LOCAL, state=state) as server:
        client = _client(server)
        for path in ("/state", "/metrics"):
            with pytest.raises(
                errors.JobUnreachableError, match=r"500.*strategy is gone"
            ):
                client.get(path)
        assert client.get("/healthz") == b"ok\n"


def test_the_number_of_viewers_at_a_time_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_server, "_MOST_VIEWERS", 2)
    with (
        _serving(address=_LOCAL) as server,
        contextlib.ExitStack() as silent,
    ):
        at = ("127.0.0.1", server.port or 0)
        taken = [
            silent.enter_context(socket.create_connection(at)) for _ in range(2)
        ]
        with pytest.raises(errors.JobUnreachableError):
            _client(server).state()
        for each in taken:
            each.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            with each.makefile("rb") as answer:
                assert b"200" in answer.readline()
                # Its place is free a moment after the answer has ended.
                answer.read()
        client = _client(server)
        deadline = time.monotonic() + 30
        while True:
            try:
                assert client.state() == example_state()
                break
            except errors.JobUnreachableError:
                assert time.monotonic() < deadline


def test_an_ended_job_is_an_error_that_names_its_place() -> None:
    with _serving(address=_LOCAL) as server:
        client = _client(server)
    with pytest.raises(errors.JobUnreachableError, match=client.place):
        client.state()


def test_folders_of_killed_chiefs_are_removed() -> None:
    # No process has this number.
    stale = job_sockets.make(2**22 + 1)
    stale.touch()
    assert not job_sockets.running()
    with _serving():
        assert not stale.parent.exists()
