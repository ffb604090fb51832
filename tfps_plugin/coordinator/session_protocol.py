"""What the coordinator asks of the chief's connection to the cluster.

`cluster.session.Session` is the real one; tests have a smaller one of their
own, without processes.
"""

from collections.abc import Collection
from collections.abc import Sequence
from typing import Any
from typing import Protocol
from typing import runtime_checkable

from tfps_plugin.cluster.chief.connection import Connection


class TaskLike(Protocol):
    """A worker or ps: where it is and which one."""

    @property
    def job(self) -> str:
        """ "worker" or "ps"."""

    @property
    def index(self) -> int:
        """Its index within its job."""

    @property
    def address(self) -> str:
        """Its "host:port"."""


class ClusterLike(Protocol):
    """Who is in the cluster."""

    @property
    def workers(self) -> Sequence[Any]:
        """All workers, ascending by index."""

    @property
    def parameter_servers(self) -> Sequence[Any]:
        """All ps, ascending by index."""


class StatusLike(Protocol):
    """What a task says of itself."""

    @property
    def incarnation(self) -> int:
        """A number that differs after every start of the task's process."""


@runtime_checkable
class SessionLike(Protocol):
    """The chief's connection to the cluster."""

    @property
    def cluster(self) -> ClusterLike:
        """Who is in the cluster."""

    @property
    def connection(self) -> Connection:
        """What everything that is made on the cluster belongs to."""

    @property
    def num_changes(self) -> int:
        """Another number whenever the cluster has changed."""

    @property
    def listed(self) -> Collection[Any]:
        """The tasks that the chief is connected to now."""

    def device(self, task: Any) -> str:
        """The device that closures for a task are placed on."""

    def incarnation(self, task: Any) -> int:
        """The incarnation of a task that the chief is connected to."""

    def probe(self, task: Any, timeout_seconds: float) -> StatusLike:
        """Asks a task for its status; raises TaskUnreachableError."""

    def break_connections(self, task: Any) -> None:
        """Has everything that waits for a task fail at once."""

    def delist(self, task: Any) -> Collection[Any]:
        """Takes a task out, and others that are dead; returns all of them.

        Raises TaskUnreachableError if a ps that is to stay does not answer.
        """

    def readmit(self, task: Any, *, unless_listed: bool = False) -> None:
        """Takes a task into the cluster again.

        With `unless_listed`, one that is listed as it is now stays so.
        Raises TaskUnreachableError if it, or a ps, does not answer.
        """
