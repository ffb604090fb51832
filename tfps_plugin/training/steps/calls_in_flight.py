"""How many calls a worker runs at a time. Pure: no TensorFlow."""

import logging
import statistics
import threading
from collections.abc import Generator

_logger = logging.getLogger("tfps_plugin")

# More calls at a time compute on older weights, and fewer wait for messages:
# what is not clearly faster, and each time, is not worth it.
_TIMES_AS_FAST = 1.1
_COMPARISONS = 2
_LEAST_CALLS_MEASURED = 4


class CallsInFlight:
    """How many calls a worker runs at a time, by how fast steps then are.

    Several calls hide that each waits for messages, and are in each other's way
    where processors are short. It begins with a number that is good for most,
    takes turns with others, and keeps what is clearly faster.

    Threading: safe from several threads. Guarded by `_lock`: everything that
    changes.
    """

    def __init__(
        self,
        num_workers: int,
        at_first: int,
        most: int,
        least: int = 1,
        name: str = "",
    ) -> None:
        """Knows nothing yet.

        Args:
            num_workers: How many workers there are.
            at_first: How many calls each runs until more is known.
            most: No more than this; if it is `at_first`, that is kept.
            least: No fewer than this.
            name: Whose steps, for people.
        """
        self._num_workers = num_workers
        self._at_first = at_first
        self._most = most
        self._least = least
        self._name = name
        self._lock = threading.Lock()
        # When each lane's latest call has ended.
        self._ends: dict[int, float] = {}
        # Steps per second of all workers, by the number of calls of each.
        self._speeds: dict[int, list[float]] = {}
        self._is_kept = at_first == most
        self._trials = self._best()
        self._number = at_first
        self._since = 0.0
        self._num_to_pass_over = 0
        self._measured: list[float] = []
        self._begin(at_first if self._is_kept else next(self._trials), 0.0)

    @property
    def number(self) -> int:
        """How many calls each worker is to run at a time."""
        return self._number

    @property
    def is_kept(self) -> bool:
        """Whether the number will not change any more."""
        return self._is_kept

    def went_idle(self) -> None:
        """Notes that no call was running for a while."""
        with self._lock:
            self._ends.clear()

    def measure_again(self, now: float) -> None:
        """Notes that calls are not what they were when they began.

        Args:
            now: In seconds.
        """
        with self._lock:
            if not self._is_kept:
                self._speeds.clear()
                self._trials = self._best()
                self._begin(next(self._trials), now)

    def observe(self, num_steps: int, lane: int, now: float) -> None:
        """Notes that a call has ended, of about as many steps as others.

        Args:
            num_steps: How many steps it made.
            lane: Which of all that run at the same time it was.
            now: In seconds.
        """
        with self._lock:
            if self._is_kept:
                return
            before, self._ends[lane] = self._ends.get(lane), now
            # With the time between two calls: it may be others that are slow.
            if before is None or not self._since <= before < now:
                return
            if self._num_to_pass_over:
                self._num_to_pass_over -= 1
                if not self._num_to_pass_over:
                    self._since = now
                return
            self._measured.append(num_steps / (now - before))
            if len(self._measured) < max(_LEAST_CALLS_MEASURED, self._lanes):
                return
            speed = self._lanes * statistics.median(self._measured)
            self._speeds.setdefault(self._number, []).append(speed)
            try:
                self._begin(self._trials.send(speed), now)
                return
            except StopIteration as end:
                self._number = end.value
                self._is_kept = True
        _logger.info(
            "Each worker runs %d calls of %s at a time, unless "
            "max_closures_in_flight_per_worker of the strategy says "
            "otherwise. Steps per second of all workers were %s.",
            self._number,
            self._name or "the model",
            ", ".join(
                f"{statistics.median(speeds):.3g} with {number}"
                for number, speeds in sorted(self._speeds.items())
            ),
        )

    @property
    def _lanes(self) -> int:
        return self._number * self._num_workers

    def _begin(self, number: int, now: float) -> None:
        """Measures with another number, or once more with the same one."""
        self._number = number
        # What began before ran beside more calls, or fewer; and one of each
        # lane may have run beside the end of such a call.
        self._since = now
        self._num_to_pass_over = self._lanes
        self._measured = []

    def _best(self) -> Generator[int, float, int]:
        """Yields what is to be measured, is sent its speed; the result."""
        best = self._at_first
        while best < self._most:
            if not (yield from self._is_faster(best + 1, best)):
                break
            best += 1
        may_be_fewer = best == self._at_first > self._least
        if may_be_fewer and (yield from self._is_faster(best - 1, best)):
            best -= 1
        return best

    @staticmethod
    def _is_faster(number: int, than: int) -> Generator[int, float, bool]:
        for _ in range(_COMPARISONS):
            before = yield than
            if (yield number) < _TIMES_AS_FAST * before:
                return False
        return True
