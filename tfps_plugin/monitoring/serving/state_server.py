"""Server that tells the state of a job over HTTP.

    GET /state     the state as JSON
    GET /metrics   the same as metrics of Prometheus
    GET /healthz   "ok": the chief lives

It listens at a Unix socket, which only the user of the job can open, and if
asked at an address of the network.
"""

import contextlib
import hmac
import http.server
import ipaddress
import logging
import os
import pathlib
import socket
import socketserver
import threading
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from tfps_plugin import errors
from tfps_plugin.monitoring.serving import job_sockets
from tfps_plugin.monitoring.state import json_form
from tfps_plugin.monitoring.state import prometheus
from tfps_plugin.monitoring.state.cluster_state import ClusterState

_logger = logging.getLogger("tfps_plugin.monitoring")

# Longest time that a viewer may take to send its request, or to take the
# answer.
_REQUEST_TIMEOUT_SECONDS = 5.0
# How soon a server notices that it is to end, or that nobody is left to ask.
_POLL_SECONDS = 0.5
# Viewers that are answered at the same time; each has a thread. More are sent
# away, so that nobody can take all threads of the chief's machine.
_MOST_VIEWERS = 32


class StateServer:
    """Serves the state of one job, on threads of its own.

    Threading: `start` and `stop` are called once each, by one thread. `state`
    is called by several.
    """

    def __init__(
        self,
        state: Callable[[], ClusterState],
        *,
        address: tuple[str, int] | None = None,
        token: str | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepares; opens nothing yet.

        Args:
            state: Returns the state.
            address: Host and port to listen at, besides the Unix socket.
            token: Secret that is needed at the address; None: none is needed.
            is_wanted: Whether there is still a job to tell of. If not, the
                server ends by itself.
        """
        self._state = state
        self._address = address
        self._token = token
        self._is_wanted = is_wanted
        self._as_json = _JsonForm()
        self._stopped = threading.Event()
        self._servers: list[socketserver.BaseServer] = []
        self._threads: list[threading.Thread] = []
        self._path: pathlib.Path | None = None
        self._process_id = os.getpid()

    @property
    def is_serving(self) -> bool:
        """False once it has ended, or before it begins."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def port(self) -> int | None:
        """Port of the address; None without one."""
        for server in self._servers:
            if isinstance(server, _TcpServer):
                return int(server.server_address[1])
        return None

    def start(self) -> None:
        """Opens the sockets, and serves.

        Raises:
            ClusterConfigurationError: If it cannot listen at the address.
        """
        if self._address is not None:
            try:
                self._serve(
                    _TcpServer(
                        self._address,
                        self._handler(
                            self._token, is_local=self._token is None
                        ),
                    )
                )
            except OSError as error:
                raise errors.ClusterConfigurationError(
                    "The chief cannot tell its state at this address. Expected "
                    "an address of this machine with a free port. Received: "
                    f"monitoring.address={':'.join(map(str, self._address))!r}"
                    f": {error}. Give another port, or 0 for any."
                ) from error
            _logger.info(
                "The state of the job is at http://%s:%d/state.",
                self._address[0],
                self.port,
            )
        try:
            self._path = job_sockets.make(self._process_id)
            self._serve(_UnixServer(str(self._path), self._handler(None)))
        # Training does not depend on it.
        except OSError as error:
            if self._path is not None:
                job_sockets.remove(self._path)
            _logger.warning(
                "`tfps status` will not find this job: the chief cannot make "
                "a socket in the folder for temporary files. Received: %s.",
                error,
            )

    def stop(self) -> None:
        """Closes the sockets, and waits for the threads."""
        # A forked child has inherited all of it, but it is not the chief.
        if os.getpid() != self._process_id:
            return
        self._stopped.set()
        for thread in self._threads:
            thread.join(_REQUEST_TIMEOUT_SECONDS)
        self._servers, self._threads = [], []

    def _serve(self, server: socketserver.BaseServer) -> None:
        self._servers.append(server)
        thread = threading.Thread(
            target=self._run,
            args=(server,),
            name="tfps-state-server",
            daemon=True,
        )
        self._threads.append(thread)
        thread.start()

    def _run(self, server: socketserver.BaseServer) -> None:
        server.timeout = _POLL_SECONDS
        with server:
            while not self._stopped.is_set() and self._is_wanted():
                server.handle_request()
        if isinstance(server, _UnixServer) and self._path is not None:
            job_sockets.remove(self._path)

    def _handler(
        self, token: str | None, *, is_local: bool = False
    ) -> type["_Handler"]:
        class Handler(_Handler):
            state = staticmethod(self._state)
            as_json = staticmethod(self._as_json)

        Handler.token = token
        Handler.is_local = is_local
        return Handler


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Server with a thread for each viewer, and a limit on their number.

    Threading: as its base classes. Viewers are counted by a semaphore.
    """

    daemon_threads = True
    # Threads end with their requests, which have a deadline.
    block_on_close = False

    def __init__(self, address: object, handler: type["_Handler"]) -> None:
        self._places = threading.BoundedSemaphore(_MOST_VIEWERS)
        super().__init__(address, handler)  # type: ignore[arg-type]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers on a thread, if there is a place."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers, and leaves the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Notes that a viewer was not answered."""
        _note_error()


class _TcpServer(_Server):
    allow_reuse_address = True

    def __init__(
        self, address: tuple[str, int], handler: type["_Handler"]
    ) -> None:
        host = address[0].strip("[]")
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, address[1]), handler)


class _UnixServer(_Server):
    address_family = socket.AF_UNIX


def _note_error() -> None:
    # The viewer is gone, or no program of ours. Training goes on.
    _logger.debug("A viewer could not be answered.", exc_info=True)


class _JsonForm:
    """Form of states as JSON; keeps that of the latest one.

    Several viewers get the same state, and its form takes a millisecond.

    Threading: safe from any thread, without a lock: the pair is replaced whole.
    """

    def __init__(self) -> None:
        self._latest: tuple[ClusterState, str] | None = None

    def __call__(self, state: ClusterState) -> tuple[str, str]:
        latest = self._latest
        if latest is None or latest[0] is not state:
            latest = self._latest = state, json_form.encode(state)
        return latest[1], "application/json; charset=utf-8"


def _names_this_machine(host: str) -> bool:
    """Returns whether a header `Host` names this machine, or is empty.

    A web page whose name somebody resolves to this machine has that name in it.
    """
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
        return (
            name in ("", "localhost") or ipaddress.ip_address(name).is_loopback
        )
    except ValueError:
        return False


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one viewer."""

    state: Callable[[], ClusterState]
    as_json: Callable[[ClusterState], tuple[str, str]]
    token: str | None = None
    # Whether it answers only those who ask for this machine by its own names.
    is_local = False
    timeout = _REQUEST_TIMEOUT_SECONDS
    server_version = "tfps"
    sys_version = ""

    def do_GET(self) -> None:
        """Answers a question."""
        if not self._is_allowed():
            self._answer(
                HTTPStatus.UNAUTHORIZED,
                "This job wants a token. Send the one that the chief was given "
                "(monitoring.token, or TFPS_MONITOR_TOKEN).\n",
            )
            return
        host = self.headers.get("Host", "")
        if self.is_local and not _names_this_machine(host):
            self._answer(
                HTTPStatus.FORBIDDEN,
                "Without a token, this job is shown to this machine only. "
                "Expected localhost or a loopback address, such as 127.0.0.1. "
                f"Received: Host: {host}\n",
            )
            return
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._answer(HTTPStatus.OK, "ok\n")
        elif path == "/state":
            self._answer_with(self.as_json)
        elif path == "/metrics":
            self._answer_with(prometheus.exposition)
        else:
            self._answer(
                HTTPStatus.NOT_FOUND,
                "There is /state, /metrics and /healthz.\n",
            )

    def _answer_with(
        self, form: Callable[[ClusterState], tuple[str, str]]
    ) -> None:
        """Answers with a form of the state, or with what is wrong."""
        try:
            text, content_type = form(self.state())
        except ModuleNotFoundError:
            self._answer(
                HTTPStatus.NOT_IMPLEMENTED,
                "The chief lacks a package. Install it there: "
                "pip install 'tfps_plugin[monitoring]'\n",
            )
        # Otherwise a viewer would believe that the job has ended.
        except Exception as error:
            _note_error()
            self._answer(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "The chief cannot tell its state. Received: "
                f"{type(error).__name__}: {error}\n",
            )
        else:
            self._answer(HTTPStatus.OK, text, content_type)

    def _is_allowed(self) -> bool:
        if self.token is None:
            return True
        given = self.headers.get("Authorization", "")
        return hmac.compare_digest(
            given.encode(), f"Bearer {self.token}".encode()
        )

    def _answer(
        self,
        status: HTTPStatus,
        text: str,
        content_type: str = "text/plain; charset=utf-8",
    ) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)

    def address_string(self) -> str:
        """Returns the name of the viewer: a Unix socket has none."""
        return str(self.client_address or "this machine")

    def log_message(self, format: str, *args: object) -> None:
        """Logs a request; at DEBUG, because a dashboard makes many."""
        _logger.debug("%s: %s", self.address_string(), format % args)
