"""The closure queue as lanes see it."""

import time
from collections.abc import Callable
from typing import Any

from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure_ledger import Ended
from tfps_plugin.coordinator.closures.shared_ledger import SharedLedger

# Interval at which a wait returns to Python by itself.
_WAKE_UP_SECONDS = 1.0


class LaneQueue:
    """Hands closures to lanes, and takes back how they ended.

    A lane calls `get`, and then exactly one of `done`, `failed` and `put_back`
    for each closure that it got. Lanes that are added are started when there
    is work for them.

    Guarantees: a paused worker gets no closure, and no closure that is bound
    to it waits. `put_back` never blocks.
    Guarded by the lock of the shared ledger: everything.
    """

    def __init__(self, shared: SharedLedger) -> None:
        """Creates the view of a shared ledger."""
        self._shared = shared
        self._ledger = shared.ledger
        self._lock = shared.lock
        self._scheduler = shared.scheduler

    def add(
        self, worker_index: int, start: Callable[[], None], number: int = 0
    ) -> None:
        """Adds a lane, to be started when there is work for it.

        Args:
            worker_index: The worker that the lane drives.
            start: Starts its thread, which will call `get`. Called on any
                thread, and again if it raises RuntimeError or is interrupted.
            number: The lane's number among those of its worker.
        """
        with self._lock:
            self._scheduler.add(worker_index, start, number)
            start_now = self._scheduler.wake()
        self._scheduler.start(start_now)

    @property
    def per_worker(self) -> int:
        """Number of lanes of each worker that get closures."""
        return self._scheduler.most_per_worker

    def limit(self, per_worker: int) -> None:
        """Gives closures only to that many lanes of each worker.

        Args:
            per_worker: Number of lanes. Closures that other lanes run go on.
        """
        with self._lock:
            self._scheduler.limit(per_worker)
            start = self._scheduler.wake()
        self._scheduler.start(start)

    def pause(self, worker_index: int) -> list[Ended]:
        """Gives the worker's lanes no closure until `resume`.

        Cancels what waits for that worker alone.

        Returns:
            The cancelled closures. The caller has to hand them to `tell`, once
            it holds no lock.
        """
        with self._lock:
            self._scheduler.pause(worker_index)
            return self._shared.cancel_bound(worker_index)

    def drain(self, worker_index: int) -> None:
        """Gives the worker's lanes its bound closures only, until `resume`."""
        with self._lock:
            self._scheduler.drain(worker_index)

    def wait_until_drained(
        self, worker_index: int, timeout_seconds: float
    ) -> bool:
        """Waits until a worker that is being drained has nothing to run.

        Args:
            worker_index: The worker.
            timeout_seconds: How long to wait at most.

        Returns:
            Whether it has nothing to run, or runs no more.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            while not (
                self._shared.is_done(worker_index) or self._shared.is_stopped
            ):
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return False
                self._shared.drained.wait(min(left_seconds, _WAKE_UP_SECONDS))
            return True

    def tell(self, ended: list[Ended]) -> None:
        """Tells closures that they ended."""
        self._shared.tell(ended)

    def resume(self, worker_index: int) -> None:
        """Gives the worker's lanes closures again."""
        with self._lock:
            self._scheduler.resume(worker_index)
            start = self._scheduler.wake()
        self._scheduler.start(start)

    def get(self, worker_index: int, number: int = 0) -> Closure | None:
        """Waits for a closure and begins it.

        Args:
            worker_index: The worker whose lane calls, on its own thread.
            number: The lane's number among those of its worker.

        Returns:
            The closure; None when the queue was stopped.
        """
        scheduler = self._scheduler
        while True:
            with self._lock:
                scheduler.arrived(worker_index, number)
                if self._shared.is_stopped:
                    return None
                closure = self._take(worker_index, number)
                # Also if this lane was woken in vain: for the next one.
                start = scheduler.wake()
                if closure is None and start is None:
                    scheduler.sleep(worker_index, number)
            scheduler.start(start)
            if closure is not None:
                return closure

    def done(self, closure: Closure, attempt: int, result: Any) -> None:
        """Records that an attempt of a closure returned `result`."""
        # Short for `SharedLedger.change`: neither queue nor round change.
        with self._lock:
            ended = self._ledger.done(closure, attempt, result)
            self._shared.ended(ended)
        self._shared.tell(ended)

    def failed(
        self, closure: Closure, attempt: int, error: BaseException
    ) -> None:
        """Records that an attempt raised `error`, which ends the round."""
        self._shared.change(
            lambda: self._ledger.failed(closure, attempt, error)
        )

    def put_back(
        self,
        closure: Closure,
        attempt: int,
        *,
        is_transient: bool = False,
        worker_is_lost: bool = False,
        lost_worker: int | None = None,
        behind_others: bool = False,
    ) -> bool:
        """Puts a closure back, to run again before all others that wait.

        Args:
            closure: The closure.
            attempt: The attempt that has no result.
            is_transient: Whether this counts as one of its transient retries.
            worker_is_lost: Whether the worker that ran it was lost. If that
                happens too often, the closure fails instead.
            lost_worker: Index of the lost worker; None: the one that ran it.
            behind_others: Whether it runs after the others that wait now.

        Returns:
            Whether it runs again; not if the attempt was abandoned before, or
            the closure was cancelled, as one is that is bound to a worker.
        """
        was_running = False

        def put_back() -> list[Ended]:
            nonlocal was_running
            was_running = self._ledger.is_running(closure, attempt)
            ended = self._ledger.put_back(
                closure,
                attempt,
                is_transient=is_transient,
                worker_is_lost=worker_is_lost,
                lost_worker=lost_worker,
                behind_others=behind_others,
            )
            if self._shared.is_stopped:
                ended += self._ledger.cancel_queued()
            return ended

        ended = self._shared.change(put_back)
        return was_running and all(each is not closure for each, _ in ended)

    def wait_before_retry(self, closure: Closure, seconds: float) -> None:
        """Waits, unless the closure is to be cancelled anyway.

        Args:
            closure: A running closure that is about to be put back.
            seconds: How long to wait at most.
        """
        self._wait_while(lambda: self._ledger.is_current(closure), seconds)

    def rest(self, seconds: float) -> None:
        """Waits, but not longer than until the queue is stopped."""
        self._wait_while(lambda: True, seconds)

    def _wait_while(
        self, is_wanted: Callable[[], bool], seconds: float
    ) -> None:
        deadline = time.monotonic() + seconds
        with self._lock:
            while not self._shared.is_stopped and is_wanted():
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return
                self._shared.round_ended.wait(left_seconds)

    def _take(self, worker_index: int, number: int) -> Closure | None:
        """Begins the next closure, if there is one and the lane may."""
        if not self._scheduler.may_take(worker_index, number):
            return None
        closure = self._ledger.take(
            worker_index, bound_only=self._scheduler.is_drained(worker_index)
        )
        if closure is not None:
            closure.cancellation = self._shared.cancellation
            # A caller that waits for room is woken only when there is room for
            # many closures: taking turns with the lanes would cost more. Bound
            # closures may wait for long, while lanes take all others.
            if self._ledger.num_unbound <= self._ledger.capacity // 2:
                self._shared.room_made.notify()
        return closure
