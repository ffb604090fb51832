"""Protocols of what a span needs of a step and of each parameter server."""

from collections.abc import Sequence
from typing import Any
from typing import Protocol


class QueuesOfStep(Protocol):
    """Queues of one step function, at which workers and ps wait."""

    @property
    def num_workers(self) -> int:
        """Number of workers of the cluster."""

    def close_queues(self, ps: int) -> None:
        """Ends calls that wait at the queues of a ps, now or later.

        Args:
            ps: Index of the ps.
        """

    def renew_queues(self, ps: int) -> None:
        """Replaces the queues of a ps by empty ones; no call may use them.

        Args:
            ps: Index of the ps.
        """

    def leave(self, worker: int, ps: int) -> None:
        """Tells a ps that a worker takes no further part.

        Args:
            worker: Index of the worker.
            ps: Index of the ps.
        """


class CallOfPs(Protocol):
    """A function that runs on one ps during a whole span."""

    @property
    def device(self) -> str:
        """Device of the ps."""

    @property
    def scalars(self) -> Sequence[Any]:
        """Variables whose values the chief reads before the call."""

    @property
    def function(self) -> Any:
        """The concrete function."""

    def empty(self) -> None:
        """Takes out of queues what came too late."""
