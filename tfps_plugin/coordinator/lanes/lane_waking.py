"""Which lane is woken for the closures that wait, and when."""

import logging
import sys
import threading
import time
from collections.abc import Callable

from tfps_plugin.coordinator.lanes.convoy_free_lock import ConvoyFreeLock
from tfps_plugin.coordinator.lanes.resting_lanes import RestingLanes
from tfps_plugin.coordinator.lanes.short_functions import ShortFunctions

_logger = logging.getLogger(__name__)

# What a lane that waits is woken with, or one that has no thread yet started.
_Waiting = threading.Condition
_Start = Callable[[], None]
# That, and its worker.
ToStart = tuple[int, _Start]

# A lane that runs short functions comes back sooner, even if it waits for
# Python's lock some times, which other threads have for 5 ms each.
_WATCH_SECONDS = 50e-3


class LaneWaking:
    """Lanes that have nothing to do, and how they come to have something.

    Lanes wake each other, one at a time: many that are woken at once only wait
    for each other. Where functions end at once (`ShortFunctions`), one lane
    runs them all, and one other watches that it does.

    Guarantees: while closures wait, a lane that may take one takes it, or is on
    its way, or watches the one that does.
    Guarded by the lock that it is given, which whoever calls it holds: all of
    it. `start` alone is called without.
    """

    def __init__(
        self,
        lock: ConvoyFreeLock,
        num_queued: Callable[[], int],
        give_up: Callable[[BaseException], None],
        most_per_worker: int = sys.maxsize,
    ) -> None:
        """Knows of no lane.

        Args:
            lock: Of the queue.
            num_queued: How many closures wait; called with the lock.
            give_up: Told, without it, that no lane will ever come.
            most_per_worker: How many lanes of each worker take part.
        """
        self._lock = lock
        self._num_queued = num_queued
        self._give_up = give_up
        self._resting: RestingLanes[_Waiting | _Start] = RestingLanes()
        self._functions = ShortFunctions()
        # Lanes of each worker beyond those that may take part, by number.
        self._spare: list[tuple[int, int, _Waiting | _Start]] = []
        self._most_per_worker = most_per_worker
        # Whose lane was woken and has not come yet.
        self._awaited: int | None = None
        # The lowest number of a lane that ever came; it goes on until the
        # queue is stopped.
        self._lowest_number = sys.maxsize
        self._watching: _Waiting | None = None
        self._num_taken = 0
        # Whether whoever took the last one will come for the next, if it is
        # not held up.
        self._is_tended = False

    def add(self, worker_index: int, start: _Start, number: int = 0) -> None:
        """Notes a lane that has no thread yet.

        Args:
            worker_index: Whose it is.
            start: Starts its thread.
            number: Of the lane, among its worker's own.
        """
        self._lay_down(worker_index, start, number)

    @property
    def most_per_worker(self) -> int:
        """How many lanes of each worker take part."""
        return self._most_per_worker

    def limit(self, most_per_worker: int) -> None:
        """Has only so many lanes of each worker take part: the first ones."""
        self._most_per_worker = most_per_worker
        # Those that rest and have become too many are found out when they
        # come.
        spare, self._spare = self._spare, []
        for number, worker_index, lane in spare:
            self._lay_down(worker_index, lane, number)

    def is_spare(self, number: int) -> bool:
        """Whether a lane of that number is to take nothing."""
        return number >= self._most_per_worker

    def _lay_down(
        self, worker_index: int, lane: "_Waiting | _Start", number: int
    ) -> None:
        if self.is_spare(number):
            self._spare.append((number, worker_index, lane))
        else:
            self._resting.add(worker_index, lane)

    def pause(self, worker_index: int) -> None:
        """Wakes no lane of the worker until `resume`."""
        self._resting.pause(worker_index)

    def resume(self, worker_index: int) -> None:
        """Wakes its lanes again."""
        self._resting.resume(worker_index)

    def is_paused(self, worker_index: int) -> bool:
        """Whether its lanes are to take nothing."""
        return self._resting.is_paused(worker_index)

    def comes(self, worker_index: int, number: int = 0) -> None:
        """Notes that a lane of the worker looks for something to do.

        Args:
            worker_index: Whose lane it is.
            number: Of the lane, among its worker's own.
        """
        self._lowest_number = min(self._lowest_number, number)
        if self.is_spare(number):
            # It may be the one that has run the last ones.
            self._is_tended = False
        if worker_index == self._awaited:
            self._awaited = None

    def is_needed(self, num_running: int) -> bool:
        """Whether a lane that has come is to take something.

        Args:
            num_running: How many closures others run.
        """
        return not (num_running and self._functions.are_short)

    def took(self) -> None:
        """Notes that a lane has begun a closure."""
        self._num_taken += 1
        self._is_tended = True

    def ended(self, began_at: float, now: float) -> None:
        """Notes when a closure began and that it has ended (monotonic)."""
        self._functions.observe(began_at, now)

    def rest(self, worker_index: int, number: int = 0) -> None:
        """Has the present thread, a lane's, wait until it is to come again.

        Args:
            worker_index: Whose lane it is.
            number: Of the lane, among its worker's own.
        """
        if not self._num_queued():
            self._is_tended = False
        waiting = self._lock.condition()
        self._lay_down(worker_index, waiting, number)
        waiting.wait()

    def watch(self, worker_index: int, number: int = 0) -> bool:
        """Has the present thread, a lane's, see to it that others take them.

        Args:
            worker_index: Whose lane it is.
            number: Of the lane, among its worker's own.

        Returns:
            False, at once, if it is not to, or another one does.
        """
        if (
            self._watching is not None
            or not self._functions.are_short
            or not self._num_queued()
            or self.is_paused(worker_index)
            or self.is_spare(number)
        ):
            return False
        self._watching = self._lock.condition()
        before = None
        while self._num_queued() and self._functions.are_short:
            if before == self._num_taken:
                # Whoever runs them is held up by one that is not short.
                self._functions.found_long(time.monotonic())
                break
            before = self._num_taken
            if self._watching.wait(_WATCH_SECONDS):
                break
        self._watching = None
        return True

    def wake(self) -> ToStart | None:
        """Wakes one of the lanes that rest, if there is work for it.

        Not if one was woken and has not come yet: it will wake the next.

        Returns:
            The lane, if it has to be started, without the lock; None if it
            waits already, or none is to come.
        """
        if not self._num_queued() or self._awaited is not None:
            return None
        if self._watching is not None and self._functions.are_short:
            if not self._is_tended:
                self._is_tended = True
                self._watching.notify()
            return None
        taken = self._resting.take()
        if taken is None:
            return None
        self._awaited, lane = taken
        if isinstance(lane, threading.Condition):
            lane.notify()
            return None
        return self._awaited, lane

    def wake_all(self) -> None:
        """Wakes all lanes that wait; none is started."""
        spare = [lane for _, _, lane in self._spare]
        self._spare.clear()
        for lane in (*self._resting.take_all(), *spare):
            if isinstance(lane, threading.Condition):
                lane.notify()
        if self._watching is not None:
            self._watching.notify()

    def start(self, to_start: ToStart | None) -> None:
        """Starts a lane, if one is to be started; not under the lock."""
        failed: list[ToStart] = []
        error: RuntimeError | None = None
        try:
            while to_start is not None:
                failed.append(to_start)
                try:
                    to_start[1]()
                    failed.pop()
                    return
                except RuntimeError as one:
                    error = one
                except BaseException:  # whoever starts it is interrupted
                    with self._lock:
                        self._awaited = None
                    raise
                with self._lock:
                    self._awaited = None
                    to_start = self.wake()
        finally:
            if failed:
                self._could_not_start(failed, error)

    def _could_not_start(
        self, failed: list[ToStart], error: RuntimeError | None
    ) -> None:
        """Keeps lanes for later, or gives up if there is no other one."""
        with self._lock:
            for worker_index, start in failed:
                self._resting.add(worker_index, start)
            nobody_comes = self._awaited is None and self.is_spare(
                self._lowest_number
            )
        if error is None:
            return
        _logger.warning(
            "%d threads of the coordinator could not be started, and as many "
            "functions fewer run at a time. Received: %s. Is there a limit to "
            "this process's threads (ulimit -u, pids of a container)?",
            len(failed),
            error,
        )
        if nobody_comes:
            self._give_up(error)
