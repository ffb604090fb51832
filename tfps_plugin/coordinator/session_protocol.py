"""Protocol of the chief's connection to the cluster.

`cluster.session.Session` implements it. Tests use a smaller implementation
without processes, `FakeSession`.
"""

from collections.abc import Collection
from collections.abc import Iterable
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
    def workers(self) -> Collection[Any]:
        """The workers that belong to the cluster: without removed ones."""

    @property
    def parameter_servers(self) -> Collection[Any]:
        """The ps that belong to the cluster: without removed ones."""

    @property
    def connection(self) -> Connection:
        """The owner of everything that is created on the cluster."""

    @property
    def num_changes(self) -> int:
        """A number that differs after every change of the cluster."""

    @property
    def listed(self) -> Collection[Any]:
        """The tasks that the chief is connected to now."""

    def add_worker(self, address: str) -> Any:
        """Adds a worker to the cluster; `readmit` then takes it in.

        Returns:
            The worker; with its earlier index if it has had one.

        Raises:
            ClusterConfigurationError: If it cannot be added.
        """

    def add_ps(self, address: str) -> Any:
        """Adds a ps, which belongs to the cluster once `join_ps` is called.

        Raises:
            ClusterConfigurationError: If it cannot be added.
        """

    def join_ps(self, task: Any) -> None:
        """Makes a parameter server belong to the cluster."""

    def note_leaving(self, task: Any) -> None:
        """Keeps the present process of a task from being taken in again."""

    def remove(self, task: Any) -> None:
        """Removes a worker or ps that was delisted, and tells it to end."""

    def retire(self, task: Any) -> None:
        """Removes a worker or ps, which goes on to serve until `let_go`."""

    def let_go(self, task: Any) -> None:
        """Tells a task that was delisted that it may end."""

    def take_messages(self) -> Collection[Any]:
        """Returns the messages that tasks have sent to this chief."""

    def addresses_now(self) -> ClusterSpec:
        """Returns the cluster with the present addresses of its tasks."""

    def described_now(self) -> ClusterSpec | None:
        """Returns the cluster as its resolver has it now; None: unknown."""

    def names_at(
        self, addresses: Iterable[str], timeout_seconds: float
    ) -> dict[str, str]:
        """Returns the names of the tasks that answer at some addresses."""

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
