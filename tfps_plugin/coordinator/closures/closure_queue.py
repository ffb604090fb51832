"""The closures of a coordinator, shared by its lanes and its callers."""

import sys
import time
from collections.abc import Callable
from typing import Any

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure import Cancellation
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure_ledger import ClosureLedger
from tfps_plugin.coordinator.closures.closure_ledger import Ended
from tfps_plugin.coordinator.lanes.convoy_free_lock import ConvoyFreeLock
from tfps_plugin.coordinator.lanes.lane_waking import LaneWaking

# The caller's waits return to Python this often, so that Ctrl-C is noticed
# even where a lock cannot be interrupted by a signal.
WAKE_UP_SECONDS = 1.0


class ClosureQueue:
    """A bounded queue of closures that knows how each of them ended.

    Callers `put`, `join` and `raise_error`; lanes `get` and then call one of
    `done`, `failed` and `put_back`, once for each closure they got. Lanes that
    are added are started when there is work for them.

    Guarantees: each closure is told its end exactly once, before `join`
    returns or raises because of it. An error is raised by exactly one call,
    once no closure runs; what runs is told to end. `put_back` never blocks. A
    paused worker is given no closure.
    Guarded by `_lock` (shared by the conditions): the ledger, the lanes
    without work, who was woken, the stop flag, the cancellation.
    Never call while holding the lock: `Closure.tell`, the start of a lane or
    of a cancellation.
    """

    def __init__(
        self,
        capacity: int,
        *,
        lanes_per_worker: int = sys.maxsize,
        max_workers_lost: int | None = None,
        new_cancellation: Callable[[], Cancellation | None] = lambda: None,
    ) -> None:
        """Creates an empty queue.

        Args:
            capacity: How many closures may wait before `put` blocks.
            lanes_per_worker: How many lanes of each worker take part.
            max_workers_lost: How many workers may be lost one after the other
                while they run the same closure, before it is taken for the
                cause; None: any number.
            new_cancellation: Makes what ends the calls of a round's closures
                when an error ends the round; None: they come to their end.
        """
        self._max_workers_lost = max_workers_lost
        self._ledger = ClosureLedger(capacity)
        # Whoever waits for room is woken when there is room for many: to take
        # turns with the lanes, closure by closure, takes longer than these do.
        self._few = capacity // 2
        self._lock = ConvoyFreeLock()
        self._room_made = self._lock.condition()
        self._settled = self._lock.condition()
        self._round_ended = self._lock.condition()
        self._lanes = LaneWaking(
            self._lock,
            lambda: self._ledger.num_queued,
            self.end_round,
            lanes_per_worker,
        )
        self._num_untold = 0
        self._stopped = False
        # What everybody is told once the queue has ended for good.
        self._ended_by: BaseException | None = None
        self._new_cancellation = new_cancellation
        self._cancellation = new_cancellation()

    @property
    def num_queued(self) -> int:
        """How many closures wait for a lane."""
        with self._lock:
            return self._ledger.num_queued

    @property
    def num_running(self) -> int:
        """How many closures are being run."""
        with self._lock:
            return self._ledger.num_running

    @property
    def has_work(self) -> bool:
        """Whether a closure waits or runs."""
        with self._lock:
            return not self._ledger.is_idle

    @property
    def has_error(self) -> bool:
        """Whether an error waits to be raised."""
        with self._lock:
            return self._ledger.has_error

    # What callers do.

    def put(self, closure: Closure) -> None:
        """Adds a closure at the end; waits while the queue is full.

        Raises:
            BaseException: What ended the last round, if it was not raised
                yet; the closure is not taken then.
            ClosureCancelledError: If the queue was stopped.
        """
        with self._lock:
            self._await_room()
            has_error = self._ledger.has_error
            if not has_error:
                self._ledger.put(closure)
                start = self._lanes.wake()
        if not has_error:
            self._lanes.start(start)
            return
        self.raise_error()
        # Another caller raised that error in the meantime.
        self.put(closure)

    def raise_error(self) -> None:
        """Raises the error that ended a round, if one waits.

        Waits first until no closure runs, so that the cluster is quiet.

        Raises:
            BaseException: That error, as it was raised by the closure.
        """
        with self._lock:
            while (
                self._ended_by is None
                and self._ledger.has_error
                and not self._is_quiet()
            ):
                self._settled.wait(WAKE_UP_SECONDS)
            error = self._ended_by or self._ledger.take_error()
        if error is not None:
            raise error

    def raise_error_at_once(self) -> None:
        """Raises the error that ended a round, if one waits.

        Closures of that round may still run; they no longer count.

        Raises:
            BaseException: That error, as it was raised by the closure.
        """
        with self._lock:
            error = self._ended_by or self._ledger.take_error(at_once=True)
        if error is not None:
            raise error

    def join(self) -> None:
        """Waits until every closure ended.

        Raises:
            BaseException: What ended a round, if it was not raised yet.
        """
        with self._lock:
            while self._ended_by is None and not (
                self._ledger.is_idle and self._is_quiet()
            ):
                if self._stopped and self._is_quiet():
                    return
                self._settled.wait(WAKE_UP_SECONDS)
        self.raise_error()

    def is_done(self) -> bool:
        """Whether every closure ended.

        Raises:
            BaseException: What ended a round, if it was not raised yet.
        """
        self.raise_error()
        with self._lock:
            return self._ledger.is_idle and self._is_quiet()

    def cancel_queued(self) -> int:
        """Cancels what waits and says how many; what runs goes on."""
        ended = self._change(self._ledger.cancel_queued)
        return len(ended)

    def end_round(self, error: BaseException) -> None:
        """Has the next caller raise `error`, and cancels all closures."""
        self._change(lambda: self._ledger.end_round(error))

    def end(self, error: BaseException) -> None:
        """Ends the queue for good; cancels what waits and what runs.

        Args:
            error: Raised by every call from now on.
        """
        with self._lock:
            self._ended_by = error
        self.stop()
        self.cancel_running()

    def cancel_running(self) -> None:
        """Has the calls of what runs end, after the queue was stopped."""
        with self._lock:
            cancellation = self._renew_cancellation()
        if cancellation is not None:
            cancellation.start()

    # What lanes do.

    def add_lane(
        self, worker_index: int, start: Callable[[], None], number: int = 0
    ) -> None:
        """Has a lane started when there is work for it.

        Args:
            worker_index: Whose lane it is.
            start: Starts its thread, which will `get`; called on any thread,
                and again if it raises RuntimeError or is interrupted.
            number: Of the lane, among its worker's own.
        """
        with self._lock:
            self._lanes.add(worker_index, start, number)
            start_now = self._lanes.wake()
        self._lanes.start(start_now)

    @property
    def lanes_per_worker(self) -> int:
        """How many lanes of each worker are given closures."""
        return self._lanes.most_per_worker

    def limit_lanes(self, most_per_worker: int) -> None:
        """Gives closures to so many lanes of each worker: the first ones.

        What others run goes on.
        """
        with self._lock:
            self._lanes.limit(most_per_worker)
            start = self._lanes.wake()
        self._lanes.start(start)

    def get(self, worker_index: int, number: int = 0) -> Closure | None:
        """Begins the next closure; waits while none waits.

        Args:
            worker_index: Whose lane asks, on its own thread.
            number: Of the lane, among its worker's own.

        Returns:
            The closure; None when the queue was stopped.
        """
        while True:
            with self._lock:
                self._lanes.comes(worker_index, number)
                if self._stopped:
                    return None
                closure = self._take(worker_index, number)
                if closure is None and self._lanes.watch(worker_index, number):
                    continue
                # Also if this lane was woken in vain: for the next one.
                start = self._lanes.wake()
                if closure is None and start is None:
                    self._lanes.rest(worker_index, number)
            self._lanes.start(start)
            if closure is not None:
                return closure

    def done(self, closure: Closure, attempt: int, result: Any) -> None:
        """Says that an attempt of a closure ended with `result`."""
        now = time.monotonic()
        # As `_change`, for what changes neither queue nor round.
        with self._lock:
            self._lanes.ended(closure.began_at, now)
            ended = self._ledger.done(closure, attempt, result)
            self._num_untold += len(ended)
        self._tell(ended)

    def failed(
        self, closure: Closure, attempt: int, error: BaseException
    ) -> None:
        """Says that an attempt raised `error`, which is for the user."""
        self._change(lambda: self._ledger.failed(closure, attempt, error))

    def put_back(
        self,
        closure: Closure,
        attempt: int,
        *,
        is_transient: bool = False,
        worker_is_lost: bool = False,
    ) -> bool:
        """Has a closure run again, before all that wait.

        Args:
            closure: The closure.
            attempt: The attempt that came to nothing.
            is_transient: Whether to count this as one of its transient
                retries.
            worker_is_lost: Whether the worker that ran it was lost. If that
                happens too often, the closure fails instead.

        Returns:
            Whether it will; not if the attempt was abandoned before, or the
            closure was cancelled.
        """

        was_running = False

        def put_back() -> list[Ended]:
            nonlocal was_running
            was_running = self._ledger.is_running(closure, attempt)
            if was_running and is_transient:
                closure.num_transient_retries += 1
            if was_running and worker_is_lost:
                closure.lost_workers += (closure.worker_index or 0,)
                if len(closure.lost_workers) == self._max_workers_lost:
                    return self._ledger.failed(
                        closure, attempt, _took_its_workers(closure)
                    )
            ended = self._ledger.put_back(closure, attempt)
            if self._stopped:
                ended += self._ledger.cancel_queued()
            return ended

        ended = self._change(put_back)
        return was_running and all(each is not closure for each, _ in ended)

    def wait_before_retry(self, closure: Closure, seconds: float) -> None:
        """Waits, but not for a closure that is to be cancelled anyway.

        Args:
            closure: The running closure that is about to be put back.
            seconds: How long to wait at most.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            while not self._stopped and self._ledger.is_current(closure):
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return
                self._round_ended.wait(left_seconds)

    def rest(self, seconds: float) -> None:
        """Waits, but not longer than until the queue is stopped."""
        deadline = time.monotonic() + seconds
        with self._lock:
            while not self._stopped:
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return
                self._round_ended.wait(left_seconds)

    # Who may take part.

    def pause(self, worker_index: int) -> None:
        """Gives the worker's lanes no closure until `resume`."""
        with self._lock:
            self._lanes.pause(worker_index)

    def resume(self, worker_index: int) -> None:
        """Gives the worker's lanes closures again."""
        with self._lock:
            self._lanes.resume(worker_index)
            start = self._lanes.wake()
        self._lanes.start(start)

    def stop(self) -> None:
        """Cancels what waits; every `get` returns None from now on."""
        with self._lock:
            self._stopped = True
        self._change(self._ledger.cancel_queued)
        with self._lock:
            self._lanes.wake_all()
            self._room_made.notify_all()
            self._settled.notify_all()
            self._round_ended.notify_all()

    def wait_until_quiet(self, timeout_seconds: float) -> bool:
        """Waits until no closure runs; False if that took too long."""
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            while not self._is_quiet():
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return False
                self._settled.wait(min(left_seconds, WAKE_UP_SECONDS))
            return True

    def _change(self, change: Callable[[], list[Ended]]) -> list[Ended]:
        """Makes one change of the ledger and tells the closures that ended."""
        with self._lock:
            num_queued_before = self._ledger.num_queued
            round_before = self._ledger.round
            ended = change()
            cancellation = None
            if self._ledger.round != round_before:
                cancellation = self._renew_cancellation()
            num_queued = self._ledger.num_queued
            self._num_untold += len(ended)
            start = None
            if num_queued > num_queued_before:
                start = self._lanes.wake()
            elif num_queued < num_queued_before:
                self._room_made.notify_all()
            if self._ledger.has_error:
                # Those who wait for room have an error to raise instead.
                self._room_made.notify_all()
                self._round_ended.notify_all()
        if cancellation is not None:
            cancellation.start()
        self._lanes.start(start)
        self._tell(ended)
        return ended

    def _renew_cancellation(self) -> Cancellation | None:
        """Has closures be begun under a new one; returns that of before."""
        before, self._cancellation = (
            self._cancellation,
            self._new_cancellation(),
        )
        return before

    def _tell(self, ended: list[Ended]) -> None:
        for closure, outcome in ended:
            closure.tell(outcome)
        with self._lock:
            self._num_untold -= len(ended)
            if self._is_quiet():
                self._settled.notify_all()

    def _await_room(self) -> None:
        """Waits until there is room for a closure, or an error to raise."""
        while True:
            self._refuse_if_stopped()
            if self._ledger.has_error or self._ledger.has_room:
                return
            self._room_made.wait(WAKE_UP_SECONDS)

    def _take(self, worker_index: int, number: int) -> Closure | None:
        """Begins the next closure, if there is one and the lane may."""
        if (
            self._lanes.is_paused(worker_index)
            or self._lanes.is_spare(number)
            or not self._lanes.is_needed(self._ledger.num_running)
        ):
            return None
        closure = self._ledger.take()
        if closure is not None:
            self._lanes.took()
            closure.began_at = time.monotonic()
            closure.worker_index = worker_index
            closure.cancellation = self._cancellation
            if self._ledger.num_queued <= self._few:
                self._room_made.notify()
        return closure

    def _is_quiet(self) -> bool:
        """Whether nothing runs and everything that ended was told so."""
        return not self._ledger.num_running and not self._num_untold

    def _refuse_if_stopped(self) -> None:
        if self._ended_by is not None:
            raise self._ended_by
        if self._stopped:
            raise errors.ClosureCancelledError(
                "The coordinator was closed; expected an open one to take the "
                "closure. Make a new tfps.ClusterCoordinator(strategy)."
            )


def _took_its_workers(closure: Closure) -> errors.ClosureLosesWorkersError:
    return errors.ClosureLosesWorkersError(
        f"{len(closure.lost_workers)} workers in a row were lost while they "
        "ran the same function, and it is not given to another one; expected "
        "it to leave its worker alive. Received: "
        f"{closure.call}, on workers {list(closure.lost_workers)}. What to "
        "do: (1) look into the logs of these workers: was their memory "
        "exhausted? (2) make batches smaller; (3) if they were preempted, "
        "allow more with ClusterCoordinator(strategy, "
        "max_workers_lost_per_closure=...)."
    )
