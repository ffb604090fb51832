import contextlib
import http.client
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.monitoring.serving import job_sockets
from tfps_plugin.monitoring.serving import state_client
from tfps_plugin.monitoring.serving.state_client import StateClient
from tfps_plugin.monitoring.serving.state_server import StateServer
from tfps_plugin.monitoring.state.testing import example_state

_LOCAL = ("127.0.0.1", 0)


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    # Other jobs of this machine are not seen.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextlib.contextmanager
def _serving(**options: Any) -> Iterator[StateServer]:
    server = StateServer(example_state, **options)
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
