"""Bounded queue of closures, with the blocking waits of its callers."""

import time

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure_ledger import Ended
from tfps_plugin.coordinator.closures.shared_ledger import SharedLedger
from tfps_plugin.coordinator.lanes.lane_queue import LaneQueue

# The callers' waits return to Python this often, so that Ctrl-C is noticed
# even where a signal cannot interrupt a lock.
WAKE_UP_SECONDS = 1.0


class ClosureQueue:
    """A bounded queue of closures that knows how each of them ended.

    This class is what callers use; lanes use `lanes`.

    Guarantees: each closure is told its end exactly once, before `join`
    returns or raises because of it. An error is raised by exactly one call,
    once no closure runs; what runs is told to end.
    Guarded by the lock of the shared ledger: everything.
    Never call while holding the lock: a closure, the start of a lane or of a
    cancellation.

    Attributes:
        lanes: The queue as lanes see it.
    """

    def __init__(self, shared: SharedLedger) -> None:
        """Creates the callers' side of a ledger, and that of the lanes."""
        self._shared = shared
        self._ledger = shared.ledger
        self._lock = shared.lock
        self.lanes = LaneQueue(shared)

    @property
    def has_work(self) -> bool:
        """True if a closure waits or runs."""
        with self._lock:
            return not self._ledger.is_idle

    @property
    def has_error(self) -> bool:
        """True if an error waits to be raised."""
        with self._lock:
            return self._ledger.has_error

    @property
    def round(self) -> int:
        """Number of the ledger's round; an error begins another."""
        with self._lock:
            return self._ledger.round

    def grow(self, number: int) -> None:
        """Lets more closures wait before callers do.

        Args:
            number: How many more.
        """
        with self._lock:
            self._ledger.capacity += number
            self._shared.room_made.notify_all()

    def put(self, closure: Closure) -> None:
        """Adds a closure at the end; waits while the queue is full.

        A closure that is bound to a paused worker is cancelled instead.

        Raises:
            BaseException: What ended the last round, if it was not raised
                yet. The closure is not added then.
            ClosureCancelledError: If the queue was stopped.
        """
        scheduler = self._shared.scheduler
        worker_index = closure.bound_to
        cancelled: list[Ended] = []
        with self._lock:
            self._await_room(worker_index)
            has_error = self._ledger.has_error
            if not has_error:
                self._ledger.put(closure)
                if worker_index is not None and scheduler.is_paused(
                    worker_index
                ):
                    cancelled = self._shared.cancel_bound(worker_index)
                start = scheduler.wake()
        if not has_error:
            if cancelled:
                self._shared.tell(cancelled)
            scheduler.start(start)
            return
        self.raise_error()
        # Another caller raised that error in the meantime.
        self.put(closure)

    def try_put(self, closure: Closure) -> bool:
        """Adds a closure that the program knows nothing of; never waits.

        A full queue takes it, too: programs that schedule faster than workers
        run would never let one in. So only few such closures may be added.

        Returns:
            Whether it was added. Not if callers would get an error, which is
            theirs, or if the closure is bound to a paused worker.
        """
        shared = self._shared
        with self._lock:
            if (
                shared.is_stopped
                or shared.ended_by is not None
                or self._ledger.has_error
                or (
                    closure.bound_to is not None
                    and shared.scheduler.is_paused(closure.bound_to)
                )
            ):
                return False
            self._ledger.put(closure)
            start = shared.scheduler.wake()
        shared.scheduler.start(start)
        return True

    def raise_error(self) -> None:
        """Raises the error that ended a round, if there is one.

        Waits first until no closure runs, so that the cluster is quiet.

        Raises:
            BaseException: That error, as the closure raised it.
        """
        shared = self._shared
        with self._lock:
            while (
                shared.ended_by is None
                and self._ledger.has_error
                and not shared.is_quiet
            ):
                shared.settled.wait(WAKE_UP_SECONDS)
            error = shared.ended_by or self._ledger.take_error()
        if error is not None:
            raise error

    def raise_error_at_once(self) -> None:
        """Raises the error that ended a round, if there is one.

        Does not wait: closures of that round may still run, but they no
        longer count.

        Raises:
            BaseException: That error, as the closure raised it.
        """
        with self._lock:
            error = self._shared.ended_by or self._ledger.take_error(
                at_once=True
            )
        if error is not None:
            raise error

    def join(self) -> None:
        """Waits until every closure ended.

        Raises:
            BaseException: What ended a round, if it was not raised yet.
        """
        shared = self._shared
        with self._lock:
            while shared.ended_by is None and not (
                self._ledger.is_idle and shared.is_quiet
            ):
                if shared.is_stopped and shared.is_quiet:
                    return
                shared.settled.wait(WAKE_UP_SECONDS)
        self.raise_error()

    def is_done(self) -> bool:
        """Returns whether every closure ended.

        Raises:
            BaseException: What ended a round, if it was not raised yet.
        """
        self.raise_error()
        with self._lock:
            return self._ledger.is_idle and self._shared.is_quiet

    def wait_until_quiet(self, timeout_seconds: float) -> bool:
        """Waits until no closure runs.

        Returns:
            Whether none runs; False after the timeout.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            while not self._shared.is_quiet:
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return False
                self._shared.settled.wait(min(left_seconds, WAKE_UP_SECONDS))
            return True

    def wait_until_idle(self, timeout_seconds: float) -> bool:
        """Waits until no closure waits or runs.

        Args:
            timeout_seconds: How long to wait at most.

        Returns:
            Whether that is so, and no error waits to be raised.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            while not (self._ledger.is_idle and self._shared.is_quiet):
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0 or self._shared.ended_by is not None:
                    return False
                self._shared.settled.wait(min(left_seconds, WAKE_UP_SECONDS))
            return not self._ledger.has_error

    def cancel_queued(self) -> int:
        """Cancels closures that wait, and returns their number."""
        return len(self._shared.change(self._ledger.cancel_queued))

    def cancel_running(self) -> None:
        """Ends the calls of closures that run, after the queue was stopped."""
        with self._lock:
            cancellation = self._shared.renew_cancellation()
        if cancellation is not None:
            cancellation.start()

    def end_round(self, error: BaseException) -> None:
        """Cancels all closures; the next caller raises `error`."""
        self._shared.end_round(error)

    def end(self, error: BaseException) -> None:
        """Ends the queue for good: cancels what waits and what runs.

        Args:
            error: Raised by every call from now on.
        """
        with self._lock:
            self._shared.ended_by = error
        self.stop()
        self.cancel_running()

    def stop(self) -> None:
        """Cancels what waits; lanes get None from now on."""
        shared = self._shared
        with self._lock:
            shared.is_stopped = True
        shared.change(self._ledger.cancel_queued)
        with self._lock:
            shared.scheduler.wake_all()
            shared.room_made.notify_all()
            shared.settled.notify_all()
            shared.round_ended.notify_all()

    def _await_room(self, worker_index: int | None) -> None:
        """Waits until there is room for a closure, or an error to raise.

        Args:
            worker_index: The worker that the closure is bound to, if any. None
                needs room for a paused worker: it is cancelled at once.
        """
        scheduler = self._shared.scheduler
        while True:
            if self._shared.ended_by is not None:
                raise self._shared.ended_by
            if self._shared.is_stopped:
                raise errors.ClosureCancelledError(
                    "The coordinator was closed and takes no function any "
                    "more; expected an open one. Create a new "
                    "tfps.ClusterCoordinator(strategy)."
                )
            if self._ledger.has_error or self._ledger.has_room:
                return
            if worker_index is not None and scheduler.is_paused(worker_index):
                return
            self._shared.room_made.wait(WAKE_UP_SECONDS)
