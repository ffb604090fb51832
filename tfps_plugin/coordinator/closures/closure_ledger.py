"""Which closures wait, run, have ended, and with which error.

Pure: no lock, no clock, no thread. `ClosureQueue` puts a lock around it.
"""

import collections
from typing import Any

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure import ClosureState

# A closure that ended, with its result or error.
Ended = tuple[Closure, Any]


class ClosureLedger:
    """Keeps account of closures from `put` to their end.

    Time is cut into *rounds*: an error ends one. What waits then is
    cancelled; what runs then counts as cancelled however it ends, so that a
    failed round leaves no result behind that looks complete. The error is kept
    until it is taken, which is possible once nothing runs.

    Whoever runs a closure says which attempt it speaks of; what comes of an
    attempt that was abandoned meanwhile is ignored.

    Not thread-safe. Methods that end closures do not tell them: they return
    what ended, for the caller to tell after it has released its lock.
    """

    def __init__(self, capacity: int) -> None:
        """Creates an empty ledger.

        Args:
            capacity: How many closures may wait; at least 1.
        """
        if capacity < 1:
            raise ValueError(
                "A closure queue must hold at least one closure. "
                f"Received: capacity={capacity}"
            )
        self.capacity = capacity
        self._queued: collections.deque[Closure] = collections.deque()
        self._num_running = 0
        self._round = 0
        self._error: BaseException | None = None

    @property
    def num_queued(self) -> int:
        """How many closures wait for a lane."""
        return len(self._queued)

    @property
    def num_running(self) -> int:
        """How many closures are being run."""
        return self._num_running

    @property
    def has_room(self) -> bool:
        """Whether `put` would take another closure."""
        return len(self._queued) < self.capacity

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._queued and not self._num_running

    @property
    def round(self) -> int:
        """How many rounds have ended."""
        return self._round

    @property
    def has_error(self) -> bool:
        """Whether an error waits to be taken."""
        return self._error is not None

    def is_running(self, closure: Closure, attempt: int) -> bool:
        """Whether that attempt of the closure is what runs now.

        Not so when the attempt was abandoned: the closure was put back, and
        runs again or has ended.
        """
        return (
            closure.state is ClosureState.RUNNING
            and closure.num_attempts == attempt
        )

    def is_current(self, closure: Closure) -> bool:
        """Whether a running closure's end still counts."""
        return closure.round == self._round

    def put(self, closure: Closure) -> None:
        """Adds a new closure at the end.

        Raises:
            InternalError: If there is no room, or an error waits.
        """
        if not self.has_room or self._error is not None:
            raise errors.InternalError(
                "A closure was put where none can be taken. Please report "
                f"this. Received: num_queued={self.num_queued}, "
                f"error={self._error!r}"
            )
        self._queued.append(closure)

    def take(self) -> Closure | None:
        """Begins the closure that waited longest; None if none waits."""
        if not self._queued:
            return None
        closure = self._queued.popleft()
        closure.move_to(ClosureState.RUNNING)
        closure.round = self._round
        self._num_running += 1
        return closure

    def put_back(self, closure: Closure, attempt: int) -> list[Ended]:
        """Has a running closure run again, before all others.

        Never refuses for lack of room: the closure had its place before. One
        of an ended round is cancelled instead.
        """
        if not self.is_running(closure, attempt):
            return []
        if not self.is_current(closure):
            return self._end(closure, ClosureState.CANCELLED, None)
        self._num_running -= 1
        closure.move_to(ClosureState.QUEUED)
        self._queued.appendleft(closure)
        return []

    def done(self, closure: Closure, attempt: int, result: Any) -> list[Ended]:
        """Ends a running closure with its result."""
        if not self.is_running(closure, attempt):
            return []
        if not self.is_current(closure):
            return self._end(closure, ClosureState.CANCELLED, None)
        return self._end(closure, ClosureState.DONE, result)

    def failed(
        self, closure: Closure, attempt: int, error: BaseException
    ) -> list[Ended]:
        """Ends a running closure with its error, and with it the round."""
        if not self.is_running(closure, attempt):
            return []
        if not self.is_current(closure):
            return self._end(closure, ClosureState.CANCELLED, None)
        return [
            *self._end(closure, ClosureState.FAILED, error),
            *self.end_round(error),
        ]

    def end_round(self, error: BaseException) -> list[Ended]:
        """Ends the round with an error that belongs to no closure of it.

        An error that waits already stays the one that is raised: it came
        first, and the later one may follow from it.
        """
        if self._error is None:
            self._error = error
        self._round += 1
        return self.cancel_queued()

    def cancel_queued(self) -> list[Ended]:
        """Cancels what waits; what runs goes on and counts."""
        ended: list[Ended] = []
        while self._queued:
            closure = self._queued.popleft()
            closure.move_to(ClosureState.CANCELLED)
            ended.append((closure, None))
        return ended

    def take_error(self, *, at_once: bool = False) -> BaseException | None:
        """The error that ended the round, once.

        Args:
            at_once: Whether to give it while closures of the round still
                run; their results no longer count either way.
        """
        if self._num_running and not at_once:
            return None
        error = self._error
        self._error = None
        return error

    def _end(
        self, closure: Closure, state: ClosureState, outcome: Any
    ) -> list[Ended]:
        closure.move_to(state)
        self._num_running -= 1
        return [(closure, outcome)]
