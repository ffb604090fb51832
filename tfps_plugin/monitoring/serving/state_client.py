"""Client that asks a chief for the state of its job."""

import http.client
import pathlib
import socket
from http import HTTPStatus

from tfps_plugin import errors
from tfps_plugin.monitoring.serving import job_sockets
from tfps_plugin.monitoring.state import json_form
from tfps_plugin.monitoring.state.cluster_state import ClusterState

_TIMEOUT_SECONDS = 10.0


class StateClient:
    """Asks one chief for the state of its job.

    Threading: one thread at a time.
    """

    def __init__(
        self,
        place: pathlib.Path | tuple[str, int],
        *,
        token: str | None = None,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> None:
        """Prepares; connects with each question.

        Args:
            place: The chief's socket on this machine, or its host and port.
            token: Secret to send; None: none.
            timeout_seconds: Longest time of a question.
        """
        self._place = place
        self._headers = {}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_seconds = timeout_seconds

    @property
    def place(self) -> str:
        """The chief's place, for people."""
        if isinstance(self._place, pathlib.Path):
            return str(self._place)
        return f"{self._place[0]}:{self._place[1]}"

    def state(self) -> ClusterState:
        """Returns the state of the job now.

        Raises:
            JobUnreachableError: If the chief does not answer, or refuses.
        """
        return json_form.decode(self.get("/state"))

    def get(self, path: str) -> bytes:
        """Returns the answer to a question.

        Args:
            path: The question, such as "/state".

        Raises:
            JobUnreachableError: If the chief does not answer, or refuses.
        """
        connection = self._connect()
        try:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise errors.JobUnreachableError(
                "The chief does not answer. Expected a job that runs. "
                f"Received: {self.place}: {error}. See that its address is "
                "right, and that the job has not ended."
            ) from error
        finally:
            connection.close()
        if answer.status != HTTPStatus.OK:
            raise errors.JobUnreachableError(
                f"The chief at {self.place} refuses to answer. Expected status "
                f"200. Received: {answer.status}: "
                f"{body.decode(errors='replace').strip()}"
            )
        return body

    def _connect(self) -> http.client.HTTPConnection:
        if isinstance(self._place, pathlib.Path):
            return _UnixConnection(self._place, self._timeout_seconds)
        host, port = self._place
        return http.client.HTTPConnection(
            host.strip("[]"), port, timeout=self._timeout_seconds
        )


def of_this_machine(process_id: int | None = None) -> StateClient:
    """Returns the client for a job of this machine.

    Args:
        process_id: That of its chief; None: the only job that there is.

    Raises:
        JobUnreachableError: If there is no such job, or there are several.
    """
    jobs = job_sockets.running()
    if process_id is None and len(jobs) == 1:
        (process_id,) = jobs
    if process_id not in jobs:
        raise errors.JobUnreachableError(
            "There is no such job of yours on this machine. Expected one whose "
            "program has made a strategy; with several, --job and the process "
            "id of its program; or --connect host:port for another machine. "
            "Received: "
            + (f"--job {process_id}" if process_id is not None else "no --job")
            + f"; programs that run: {sorted(jobs) or 'none'}."
        )
    return StateClient(jobs[process_id])


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: pathlib.Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        """Opens the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
