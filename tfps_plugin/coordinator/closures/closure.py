"""Closure: one scheduled call, and the states it passes through. Pure."""

import enum
from collections.abc import Callable
from typing import Any
from typing import Protocol

from tfps_plugin import errors
from tfps_plugin.cluster.chief.connection import Cancellation


class ClosureState(enum.Enum):
    """State of a closure."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True if no other state can follow."""
        return self not in (ClosureState.QUEUED, ClosureState.RUNNING)


# States that can follow. Not in a dictionary, because Python computes the hash
# of an enumeration's member anew each time, and slowly.
_AFTER_QUEUED = (ClosureState.RUNNING, ClosureState.CANCELLED)
_AFTER_RUNNING = (
    ClosureState.DONE,
    ClosureState.QUEUED,
    ClosureState.FAILED,
    ClosureState.CANCELLED,
)


class Listener(Protocol):
    """Receiver of a closure's end.

    Not a function: a bound method would be one more object for Python's
    garbage collector, for each of many thousands of closures.
    """

    def set_outcome(
        self, state: ClosureState, outcome: Any, worker_index: int | None
    ) -> None:
        """Receives the final state, the result or error, and the worker."""


class Closure:
    """One scheduled call and its progress.

    Not thread-safe: the ledger that it is in owns it, under the queue's lock.

    Attributes:
        call: Called by a lane, without arguments. `str` describes it for
            people.
        state: Its state.
        num_attempts: Number of times a lane began to run it.
        num_transient_retries: Number of times it ran again although all tasks
            were healthy.
        lost_workers: Indices of the workers that were lost while they ran it.
        bound_to: The only worker that may run it, at most once; None: any
            worker may, and again if it has to.
        worker_index: The worker that ran it last.
        round: The ledger's round in which it began last.
        cancellation: Cancels its call when its round ends; None: nothing
            does.
    """

    __slots__ = (
        "_listener",
        "bound_to",
        "call",
        "cancellation",
        "lost_workers",
        "num_attempts",
        "num_transient_retries",
        "round",
        "state",
        "worker_index",
    )

    def __init__(
        self,
        call: Callable[[], Any],
        listener: Listener | None = None,
        bound_to: int | None = None,
    ) -> None:
        self.call = call
        self._listener = listener
        self.bound_to = bound_to
        self.state = ClosureState.QUEUED
        self.num_attempts = 0
        self.num_transient_retries = 0
        # Not a list: a program may hold many thousands of closures, and
        # Python's garbage collector visits each object they are made of.
        self.lost_workers: tuple[int, ...] = ()
        self.round = -1
        self.cancellation: Cancellation | None = None
        self.worker_index: int | None = None

    def move_to(self, state: ClosureState) -> None:
        """Changes the state.

        Raises:
            InternalError: If `state` cannot follow the current one.
        """
        before = self.state
        if not (
            (before is ClosureState.QUEUED and state in _AFTER_QUEUED)
            or (before is ClosureState.RUNNING and state in _AFTER_RUNNING)
        ):
            raise errors.InternalError(
                f"A closure that is {self.state.value} cannot become "
                f"{state.value}. Please report this."
            )
        self.state = state
        if state is ClosureState.RUNNING:
            self.num_attempts += 1

    def tell(self, outcome: Any) -> None:
        """Tells the listener how the closure ended; called once."""
        if self._listener is not None:
            self._listener.set_outcome(self.state, outcome, self.worker_index)
