"""Ledger of closures: those that wait, those that run, and the error.

Pure: no lock, no clock, no thread. `SharedLedger` puts a lock around it.
"""

import collections
from collections.abc import Collection
from typing import Any

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure import ClosureState

# A closure that ended, with its result or error.
Ended = tuple[Closure, Any]


class ClosureLedger:
    """Keeps account of closures from `put` to their end.

    Time is divided into *rounds*; an error ends a round. Closures that wait
    then are cancelled. Those that run count as cancelled however they end, so
    that a failed round leaves no result that looks complete. The error is kept
    until it is taken, which is possible once nothing runs.

    Lanes name the attempt that they report on; reports on attempts that were
    abandoned are ignored.

    A closure that is *bound* to a worker waits in that worker's own queue. It
    runs at most once: it is cancelled where another one would be put back.

    Not thread-safe. Methods that end closures do not tell them: they return
    those that ended, for the caller to tell after it released its lock.
    """

    def __init__(
        self, capacity: int, max_workers_lost: int | None = None
    ) -> None:
        """Creates an empty ledger.

        Args:
            capacity: How many closures may wait; at least 1.
            max_workers_lost: How many workers in a row may be lost while they
                run the same closure before it counts as the cause; None: any
                number.
        """
        self.capacity = capacity
        self._max_workers_lost = max_workers_lost
        self._unbound: collections.deque[Closure] = collections.deque()
        # By worker. A queue is dropped when it is empty, so that one look
        # finds out that there is no bound closure.
        self._bound: dict[int, collections.deque[Closure]] = {}
        self._num_bound = 0
        self._num_running = 0
        self._running_on: collections.Counter[int] = collections.Counter()
        self._round = 0
        self._error: BaseException | None = None

    @property
    def num_queued(self) -> int:
        """Number of closures that wait for a lane."""
        return len(self._unbound) + self._num_bound

    @property
    def num_unbound(self) -> int:
        """Number of closures that wait for a lane of any worker."""
        return len(self._unbound)

    @property
    def bound_workers(self) -> Collection[int]:
        """Indices of the workers that bound closures wait for."""
        return self._bound

    @property
    def num_running(self) -> int:
        """Number of closures that run."""
        return self._num_running

    def num_on(self, worker_index: int) -> int:
        """Returns the number of closures that a worker runs, or alone may."""
        return self._running_on[worker_index] + len(
            self._bound.get(worker_index, ())
        )

    @property
    def has_room(self) -> bool:
        """True if `put` takes another closure."""
        return len(self._unbound) + self._num_bound < self.capacity

    @property
    def is_idle(self) -> bool:
        """True if nothing waits and nothing runs."""
        return not self.num_queued and not self._num_running

    @property
    def round(self) -> int:
        """Number of rounds that have ended."""
        return self._round

    @property
    def has_error(self) -> bool:
        """True if an error waits to be taken."""
        return self._error is not None

    def is_running(self, closure: Closure, attempt: int) -> bool:
        """Returns whether that attempt of the closure runs now.

        Not if the attempt was abandoned: the closure was put back, and runs
        again or has ended.
        """
        return (
            closure.state is ClosureState.RUNNING
            and closure.num_attempts == attempt
        )

    def is_current(self, closure: Closure) -> bool:
        """Returns whether a running closure belongs to the present round."""
        return closure.round == self._round

    def put(self, closure: Closure) -> None:
        """Adds a new closure at the end; there has to be room."""
        worker_index = closure.bound_to
        if worker_index is None:
            self._unbound.append(closure)
            return
        self._bound.setdefault(worker_index, collections.deque()).append(
            closure
        )
        self._num_bound += 1

    def take(
        self, worker_index: int, *, bound_only: bool = False
    ) -> Closure | None:
        """Begins the next closure of a worker; None if none waits for it.

        Closures that are bound to the worker come before all others; among
        equals, the one that waited longest comes first.

        Args:
            worker_index: The worker.
            bound_only: Whether the worker takes no others.
        """
        if worker_index in self._bound:
            closure = self._take_bound(worker_index)
        elif self._unbound and not bound_only:
            closure = self._unbound.popleft()
        else:
            return None
        closure.move_to(ClosureState.RUNNING)
        closure.round = self._round
        closure.worker_index = worker_index
        self._num_running += 1
        self._running_on[worker_index] += 1
        return closure

    def put_back(
        self,
        closure: Closure,
        attempt: int,
        *,
        is_transient: bool = False,
        worker_is_lost: bool = False,
        lost_worker: int | None = None,
        behind_others: bool = False,
    ) -> list[Ended]:
        """Puts a running closure back, before all others that wait.

        Room is no condition: the closure had its place before. A closure that
        is bound to a worker, or is of an ended round, is cancelled instead; one
        during which too many workers were lost fails.

        Args:
            closure: The closure.
            attempt: The attempt that has no result.
            is_transient: Whether this counts as a transient retry.
            worker_is_lost: Whether the worker that ran it was lost.
            lost_worker: Index of the lost worker; None: the one that ran it.
            behind_others: Whether it runs after the others that wait now.
        """
        if not self.is_running(closure, attempt):
            return []
        if closure.bound_to is not None:
            # It may have had effects, which must not be repeated.
            return self._end(closure, ClosureState.CANCELLED, None)
        if is_transient:
            closure.num_transient_retries += 1
        if worker_is_lost:
            if lost_worker is None:
                lost_worker = closure.worker_index or 0
            closure.lost_workers += (lost_worker,)
            if len(closure.lost_workers) == self._max_workers_lost:
                return self.failed(closure, attempt, _loses_workers(closure))
        if not self.is_current(closure):
            return self._end(closure, ClosureState.CANCELLED, None)
        self._left(closure)
        closure.move_to(ClosureState.QUEUED)
        if behind_others:
            self._unbound.append(closure)
        else:
            self._unbound.appendleft(closure)
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
        """Ends a running closure with its error, and the round with it."""
        if not self.is_running(closure, attempt):
            return []
        if not self.is_current(closure):
            return self._end(closure, ClosureState.CANCELLED, None)
        return [
            *self._end(closure, ClosureState.FAILED, error),
            *self.end_round(error),
        ]

    def end_round(self, error: BaseException) -> list[Ended]:
        """Ends the round with an error that belongs to no closure.

        If an error waits already, that one is raised: it came first, and the
        later one may be its consequence.
        """
        if self._error is None:
            self._error = error
        self._round += 1
        return self.cancel_queued()

    def cancel_queued(self) -> list[Ended]:
        """Cancels what waits; what runs goes on and counts."""
        ended = _cancel(self._unbound)
        for worker_index in tuple(self._bound):
            ended += self.cancel_bound(worker_index)
        return ended

    def cancel_bound(self, worker_index: int) -> list[Ended]:
        """Cancels what waits for that worker alone."""
        ended = _cancel(self._bound.pop(worker_index, collections.deque()))
        self._num_bound -= len(ended)
        return ended

    def take_error(self, *, at_once: bool = False) -> BaseException | None:
        """Returns the error that ended the round, and forgets it.

        Args:
            at_once: Whether to return it while closures still run; their
                results no longer count either way.
        """
        if self._num_running and not at_once:
            return None
        error = self._error
        self._error = None
        return error

    def _take_bound(self, worker_index: int) -> Closure:
        queue = self._bound[worker_index]
        closure = queue.popleft()
        if not queue:
            del self._bound[worker_index]
        self._num_bound -= 1
        return closure

    def _end(
        self, closure: Closure, state: ClosureState, outcome: Any
    ) -> list[Ended]:
        closure.move_to(state)
        self._left(closure)
        return [(closure, outcome)]

    def _left(self, closure: Closure) -> None:
        """Records that a closure runs no more."""
        self._num_running -= 1
        if closure.worker_index is not None:
            self._running_on[closure.worker_index] -= 1


def _cancel(queue: collections.deque[Closure]) -> list[Ended]:
    ended: list[Ended] = []
    while queue:
        closure = queue.popleft()
        closure.move_to(ClosureState.CANCELLED)
        ended.append((closure, None))
    return ended


def _loses_workers(closure: Closure) -> errors.ClosureLosesWorkersError:
    return errors.ClosureLosesWorkersError(
        f"{len(closure.lost_workers)} workers in a row were lost while they "
        "ran the same function, so it is not run again; expected it to leave "
        f"its worker alive. Received: {closure.call}, on workers "
        f"{list(closure.lost_workers)}. What to do: (1) check the logs of "
        "these workers: did they run out of memory? (2) use smaller batches; "
        "(3) if they were preempted, allow more losses with "
        "ClusterCoordinator(strategy, max_workers_lost_per_closure=...)."
    )
