"""Protocol of the chief's connection to the cluster.

`cluster.session.Session` implements it. Tests use a smaller implementation
without processes, `FakeSession`.
"""

from collections.abc import Collection
from typing import Any
from typing import Protocol
from typing import runtime_checkable

from tfps_plugin.cluster.chief.connection import Connection
from tfps_plugin.cluster.health import TaskStatus
from tfps_plugin.cluster.spec import ClusterSpec


@runtime_checkable
class SessionLike(Protocol):
    """The chief's connection to the cluster."""

    @property
    def cluster(self) -> ClusterSpec:
        """The tasks of the cluster."""

    @property
    def connection(self) -> Connection:
        """The owner of everything that is created on the cluster."""

    @property
    def num_changes(self) -> int:
        """A number that differs after every change of the cluster."""

    @property
    def listed(self) -> Collection[Any]:
        """The tasks that the chief is connected to now."""

    def device(self, task: Any) -> str:
        """Returns the device that closures for a task are placed on."""

    def incarnation(self, task: Any) -> int:
        """Returns the incarnation of a task that the chief is connected to."""

    def probe(self, task: Any, timeout_seconds: float) -> TaskStatus:
        """Asks a task for its status.

        Raises:
            TaskUnreachableError: If it does not answer.
        """

    def break_connections(self, task: Any) -> None:
        """Makes everything that waits for a task fail at once."""

    def delist(self, task: Any) -> Collection[Any]:
        """Removes a task from the cluster, and other tasks that are dead.

        Returns:
            All removed tasks.

        Raises:
            TaskUnreachableError: If a ps that stays does not answer.
            TaskLostError: If the change takes too long.
        """

    def readmit(self, task: Any, *, unless_listed: bool = False) -> None:
        """Adds a task to the cluster again.

        Args:
            task: The task.
            unless_listed: Whether to change nothing if this process of the
                task is listed already.

        Raises:
            TaskUnreachableError: If the task, or a ps, does not answer.
        """
