"""The life of one scheduled call."""

import enum
from collections.abc import Callable
from typing import Any
from typing import Protocol

from tfps_plugin import errors


class ClosureState(enum.Enum):
    """Where a closure is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing can follow."""
        return self not in (ClosureState.QUEUED, ClosureState.RUNNING)


# What can follow. Not looked up by hash, which Python computes anew
# for each member of an enumeration, and slowly.
_AFTER_QUEUED = (ClosureState.RUNNING, ClosureState.CANCELLED)
_AFTER_RUNNING = (
    ClosureState.DONE,
    ClosureState.QUEUED,
    ClosureState.FAILED,
    ClosureState.CANCELLED,
)


class Listener(Protocol):
    """Who is told how a closure ended.

    Not a function: a method of a remote value would be one more object for
    Python's garbage collector, for each of many thousands of closures.
    """

    def set_outcome(
        self, state: ClosureState, outcome: Any, worker_index: int | None
    ) -> None:
        """Takes the final state, the result or error, and who ran it last."""


class Cancellation(Protocol):
    """Ends the calls of the closures that were begun under it."""

    @property
    def started_at(self) -> float | None:
        """When it was started, by the monotonic clock; None: it was not."""

    def start(self) -> None:
        """Has the calls end; waits for none of them."""


class Closure:
    """One scheduled call: what to call, and how far it has come.

    Not thread-safe: the ledger that it is in owns it, under the queue's lock.

    Attributes:
        call: What a lane calls; without arguments, which it holds already.
            Its text says what it is, for people.
        state: Where it is in its life.
        num_attempts: How often a lane began to run it.
        num_transient_retries: How often it was run again although every task
            that it touched was well.
        lost_workers: Indices of the workers that were lost while they ran it.
        worker_index: The worker that ran it last.
        round: The ledger's round in which it was last begun.
        began_at: When that was, by the monotonic clock.
        cancellation: Ends what it calls when its round ends; None: nothing
            does.
    """

    __slots__ = (
        "_listener",
        "began_at",
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
    ) -> None:
        self.call = call
        self._listener = listener
        self.state = ClosureState.QUEUED
        self.num_attempts = 0
        self.num_transient_retries = 0
        # Not a list: a program may hold many thousands of closures, and
        # Python's garbage collector looks at each object they are made of.
        self.lost_workers: tuple[int, ...] = ()
        self.round = -1
        self.began_at = 0.0
        self.cancellation: Cancellation | None = None
        self.worker_index: int | None = None

    def move_to(self, state: ClosureState) -> None:
        """Moves on to `state`.

        Raises:
            InternalError: If that cannot follow the present state.
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
        """Tells whoever scheduled the closure how it ended; called once."""
        if self._listener is not None:
            self._listener.set_outcome(self.state, outcome, self.worker_index)
