"""A task's report board: a text that lives on the task, under a fixed name.

The task writes what it knows of itself, and any process that knows the task's
address reads it. Like a mailbox, the board needs no other port than that of the
task's server, and no connection of a chief. A task that is not served by this
package has none.
"""

import contextlib
from typing import Any

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_server
from tfps_plugin.cluster.serving import server_session
from tfps_plugin.cluster.spec import Task

NAME = "tfps_plugin_report"


class ReportBoard:
    """The writing end, for the task itself.

    Threading: one thread writes.
    """

    def __init__(self, target: str, task: Task) -> None:
        """Opens the board.

        Args:
            target: The session target of the task's own server.
            task: The task.
        """
        with server_session.graph_on(task) as graph:
            self._text, self._write = tensorflow_server.write_text(NAME)
        self._session = server_session.open_session(target, task, graph)

    def write(self, text: str) -> None:
        """Replaces the text."""
        self._session.run(self._write, {self._text: text})


class ReportReader:
    """The reading end, for one task.

    Threading: one thread at a time.
    """

    def __init__(self, task: Task, timeout_seconds: float) -> None:
        """Prepares; connects with the first `read`.

        Args:
            task: The task.
            timeout_seconds: Longest time of each call.
        """
        self.task = task
        self._timeout_seconds = timeout_seconds
        self._session: Any = None
        self._read: Any = None

    def read(self) -> str | None:
        """Returns the text; None if the task has written none.

        Raises:
            TaskUnreachableError: If the task does not answer in time.
        """
        try:
            if self._session is None:
                with server_session.graph_on(self.task) as graph:
                    self._read = tensorflow_server.read_text(NAME)
                self._session = server_session.open_session(
                    f"grpc://{self.task.address}",
                    self.task,
                    graph,
                    self._timeout_seconds,
                )
            return bytes(self._session.run(self._read)).decode()
        except tensorflow_server.FailedPreconditionError:
            return None
        except tensorflow_server.NotFoundError:
            return None
        except tensorflow_server.OpError as error:
            # Another process may serve in its place: it knows no session.
            self.close()
            raise errors.TaskUnreachableError(
                f"{self.task} at {self.task.address} does not tell how it is: "
                f"{error.message}",
                address=self.task.address,
                reason=error.message,
            ) from error

    def close(self) -> None:
        """Ends the connection; the next `read` makes another one."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(tensorflow_server.OpError):
                session.close()
