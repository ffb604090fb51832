"""Scheduler of lanes: which lane wakes up for the closures that wait."""

import logging
import sys
import threading
from collections.abc import Callable

from tfps_plugin.coordinator.lanes.idle_lanes import IdleLanes

_logger = logging.getLogger(__name__)

# An idle lane: the condition that its thread waits for, or the function that
# starts a thread for it.
_Waiting = threading.Condition
_Start = Callable[[], None]
# A lane to start, with its worker's index.
ToStart = tuple[int, _Start]


class LaneScheduler:
    """Puts idle lanes to sleep, and wakes or starts them when there is work.

    Lanes wake each other, one at a time: many lanes that wake at once only
    wait for each other.

    Guarantees: while closures wait, a lane that may take one is taking it or
    is on its way.
    Guarded by the lock that it is given: everything. Callers hold the lock,
    except for `start`, which must be called without it.
    """

    def __init__(
        self,
        lock: threading.RLock,
        num_queued: Callable[[], int],
        give_up: Callable[[BaseException], None],
        most_per_worker: int = sys.maxsize,
    ) -> None:
        """Creates a scheduler without lanes.

        Args:
            lock: The lock of the queue.
            num_queued: Returns the number of closures that wait; called with
                the lock.
            give_up: Called without the lock when no lane can be started.
            most_per_worker: Number of lanes of each worker that take part.
        """
        self._lock = lock
        self._num_queued = num_queued
        self._give_up = give_up
        self._idle: IdleLanes[_Waiting | _Start] = IdleLanes()
        # (number, worker index, lane) of lanes that exceed the limit.
        self._spare: list[tuple[int, int, _Waiting | _Start]] = []
        self._most_per_worker = most_per_worker
        # The worker whose lane was woken and has not arrived yet.
        self._awaited: int | None = None
        # The lowest number of a lane that ever arrived. Its thread lives until
        # the queue is stopped.
        self._lowest_number = sys.maxsize

    def add(self, worker_index: int, start: _Start, number: int = 0) -> None:
        """Adds a lane that has no thread yet.

        Args:
            worker_index: The worker that the lane drives.
            start: Starts its thread.
            number: The lane's number among those of its worker.
        """
        self._add_idle(worker_index, start, number)

    @property
    def most_per_worker(self) -> int:
        """Number of lanes of each worker that take part."""
        return self._most_per_worker

    def limit(self, most_per_worker: int) -> None:
        """Sets the number of lanes of each worker that take part."""
        self._most_per_worker = most_per_worker
        # Idle lanes that now exceed the limit are found when they wake up.
        spare, self._spare = self._spare, []
        for number, worker_index, lane in spare:
            self._add_idle(worker_index, lane, number)

    def is_spare(self, number: int) -> bool:
        """Returns whether a lane of that number exceeds the limit."""
        return number >= self._most_per_worker

    def pause(self, worker_index: int) -> None:
        """Wakes no lane of the worker until `resume`."""
        self._idle.pause(worker_index)

    def resume(self, worker_index: int) -> None:
        """Wakes lanes of the worker again."""
        self._idle.resume(worker_index)

    def may_take(self, worker_index: int, number: int) -> bool:
        """Returns whether a lane that arrived may take a closure.

        Args:
            worker_index: The worker that the lane drives.
            number: The lane's number among those of its worker.
        """
        return not (self._idle.is_paused(worker_index) or self.is_spare(number))

    def arrived(self, worker_index: int, number: int = 0) -> None:
        """Records that a lane looks for work.

        Args:
            worker_index: The worker that the lane drives.
            number: The lane's number among those of its worker.
        """
        self._lowest_number = min(self._lowest_number, number)
        if worker_index == self._awaited:
            self._awaited = None

    def sleep(self, worker_index: int, number: int = 0) -> None:
        """Puts the current thread, a lane's, to sleep until it is woken.

        Args:
            worker_index: The worker that the lane drives.
            number: The lane's number among those of its worker.
        """
        waiting = threading.Condition(self._lock)
        self._add_idle(worker_index, waiting, number)
        waiting.wait()

    def wake(self) -> ToStart | None:
        """Wakes one idle lane if there is work for it.

        Wakes none while another lane is on its way: that one wakes the next.

        Returns:
            A lane to be started without the lock; None if there is none, or
            if the lane that was woken has a thread already.
        """
        if not self._num_queued() or self._awaited is not None:
            return None
        taken = self._idle.take()
        if taken is None:
            return None
        self._awaited, lane = taken
        if isinstance(lane, threading.Condition):
            lane.notify()
            return None
        return self._awaited, lane

    def wake_all(self) -> None:
        """Wakes all lanes that sleep, and starts none."""
        spare = [lane for _, _, lane in self._spare]
        self._spare.clear()
        for lane in (*self._idle.take_all(), *spare):
            if isinstance(lane, threading.Condition):
                lane.notify()

    def start(self, to_start: ToStart | None) -> None:
        """Starts a lane that `wake` returned, or else the next idle one."""
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
                except BaseException:  # the caller was interrupted
                    with self._lock:
                        self._awaited = None
                    raise
                with self._lock:
                    self._awaited = None
                    to_start = self.wake()
        finally:
            if failed:
                self._could_not_start(failed, error)

    def _add_idle(
        self, worker_index: int, lane: _Waiting | _Start, number: int
    ) -> None:
        if self.is_spare(number):
            self._spare.append((number, worker_index, lane))
        else:
            self._idle.add(worker_index, lane)

    def _could_not_start(
        self, failed: list[ToStart], error: RuntimeError | None
    ) -> None:
        """Keeps the lanes for later, or gives up if no lane has a thread."""
        with self._lock:
            for worker_index, start in failed:
                self._idle.add(worker_index, start)
            has_no_thread = self._awaited is None and self.is_spare(
                self._lowest_number
            )
        if error is None:
            return
        _logger.warning(
            "%d threads of the coordinator could not be started, so fewer "
            "functions run at a time. Received: %s. Check the limit of "
            "threads of this process (ulimit -u, the container's pids limit).",
            len(failed),
            error,
        )
        if has_no_thread:
            self._give_up(error)
