"""Socket by which another terminal asks a running job for something."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

_PREFIX = "tfps-run-"
_NAME = "control"
_TIMEOUT_SECONDS = 5.0
_LIMIT_BYTES = 4096


class ControlSocket:
    """The end of the job: a socket in a folder that only the user may enter.

    Threading: for use by one thread.

    Attributes:
        folder: The folder, for other files of the job.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Listens; see `listening`."""
        self.folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(folder / _NAME))
        self._socket.listen()

    def fileno(self) -> int:
        """Returns the descriptor that is readable when somebody asks."""
        return self._socket.fileno()

    def close(self) -> None:
        """Ends the socket."""
        self._socket.close()

    @contextlib.contextmanager
    def request(self) -> Iterator[tuple[Any, dict[str, str]]]:
        """Takes a request; sends the answer when the block ends.

        Yields:
            The request, None if it cannot be read; and a dictionary for the
            answer.
        """
        answer: dict[str, str] = {}
        connection, _ = self._socket.accept()
        with connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            asked = None
            # Who asks may be gone, or no program of ours.
            with contextlib.suppress(OSError, ValueError):
                asked = json.loads(connection.recv(_LIMIT_BYTES))
            yield asked, answer
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(answer).encode())


@contextlib.contextmanager
def listening() -> Iterator[ControlSocket]:
    """Yields the control socket of this process, and removes it in the end."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        control = ControlSocket(folder)
        try:
            yield control
        finally:
            control.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def running_jobs() -> dict[int, pathlib.Path]:
    """Returns the sockets of the user's jobs, by the launcher's process id."""
    jobs = {}
    for path in pathlib.Path(tempfile.gettempdir()).glob(
        f"{_PREFIX}*-*/{_NAME}"
    ):
        number = path.parent.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdecimal() and path.stat().st_uid == os.getuid():
            jobs[int(number)] = path
    return jobs


def ask(path: pathlib.Path, request: Any) -> dict[str, str]:
    """Asks a job for something.

    Args:
        path: Its socket.
        request: What `json` can write.

    Returns:
        The answer.

    Raises:
        OSError: If the job does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_SECONDS)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode())
        parts = []
        while part := connection.recv(_LIMIT_BYTES):
            parts.append(part)
    answer: dict[str, str] = json.loads(b"".join(parts) or b"{}")
    return answer
