"""Scheduler of lanes: which lane wakes up for the closures that wait."""

import logging
import sys
import threading
from collections.abc import Callable
from collections.abc import Collection

from tfps_plugin.coordinator.closures.closure_ledger import ClosureLedger
from tfps_plugin.coordinator.lanes.idle_lanes import IdleLanes

_logger = logging.getLogger("tfps_plugin.coordinator")

# An idle lane: the condition that its thread waits for, or the function that
# starts a thread for it.
_Waiting = threading.Condition
_Start = Callable[[], None]
# A lane to start, with its worker's index.
ToStart = tuple[int, _Start]


class LaneScheduler:
    """Puts idle lanes to sleep, and wakes or starts them when there is work.

    Lanes wake each other, one at a time: many lanes that wake at once only
    wait for each other. A lane of another worker is of no use to a closure that
    is bound to a worker, so it is not woken for it.

    Guarantees: while closures wait, a lane that may take one is taking it or
    is on its way.
    Guarded by the lock that it is given: everything. Callers hold the lock,
    except for `start`, which must be called without it.
    """

    def __init__(
        self,
        lock: threading.RLock,
        ledger: ClosureLedger,
        give_up: Callable[[BaseException], None],
        most_per_worker: int = sys.maxsize,
    ) -> None:
        """Creates a scheduler without lanes.

        Args:
            lock: The lock of the queue.
            ledger: The closures that wait; read with the lock.
            give_up: Called without the lock when no lane can be started.
            most_per_worker: Number of lanes of each worker that take part.
        """
        self._lock = lock
        self._ledger = ledger
        self._give_up = give_up
        self._idle: IdleLanes[_Waiting | _Start] = IdleLanes()
        # (number, worker index, lane) of lanes that exceed the limit.
        self._spare: list[tuple[int, int, _Waiting | _Start]] = []
        self._most_per_worker = most_per_worker
        # The worker whose lane was woken and has not arrived yet.
        self._awaited: int | None = None
        # The lowest number of a lane of each worker that ever arrived. Its
        # thread lives until the queue is stopped.
        self._lowest_numbers: dict[int, int] = {}

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

    def drain(self, worker_index: int) -> None:
        """Wakes lanes of the worker for its bound closures, until `resume`."""
        self._idle.drain(worker_index)

    @property
    def are_drained(self) -> bool:
        """True if any worker is being drained."""
        return self._idle.are_drained

    def is_drained(self, worker_index: int) -> bool:
        """Returns whether the worker is being drained."""
        return self._idle.is_drained(worker_index)

    def is_paused(self, worker_index: int) -> bool:
        """Returns whether the worker is paused."""
        return self._idle.is_paused(worker_index)

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
        if number < self._lowest_numbers.get(worker_index, sys.maxsize):
            self._lowest_numbers[worker_index] = number
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
        if self._awaited is not None:
            return None
        taken = None
        if bound_workers := self._ledger.bound_workers:
            taken = self._take_idle_of(bound_workers)
        if taken is None and self._ledger.num_unbound:
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

    def _take_idle_of(
        self, worker_indices: Collection[int]
    ) -> tuple[int, _Waiting | _Start] | None:
        """Removes and returns an idle lane of any of the workers, if any."""
        for worker_index in worker_indices:
            lane = self._idle.take_of(worker_index)
            if lane is not None:
                return worker_index, lane
        return None

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
        """Keeps the lanes for later, or gives up if nobody will come."""
        with self._lock:
            for worker_index, start in failed:
                self._idle.add(worker_index, start)
            nobody_comes = self._awaited is None and not (
                any(map(self._has_thread, self._lowest_numbers))
                and all(map(self._has_thread, self._ledger.bound_workers))
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
        if nobody_comes:
            self._give_up(error)

    def _has_thread(self, worker_index: int) -> bool:
        """Returns whether a lane of the worker has a thread and takes part."""
        return not self.is_spare(
            self._lowest_numbers.get(worker_index, sys.maxsize)
        )
