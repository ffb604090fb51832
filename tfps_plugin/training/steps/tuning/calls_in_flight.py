"""Number of calls that a worker runs at a time. Pure: no TensorFlow."""

import logging
import statistics
import threading
from collections.abc import Generator

from tfps_plugin.training.steps.tuning.loss_course import LossCourse

_logger = logging.getLogger("tfps_plugin.training")

# Another number must be faster by this factor, every time.
_TIMES_AS_FAST = 1.1
# In training, more calls at a time compute on older weights, which costs
# quality: a little speed does not make up for it.
_TIMES_AS_FAST_IN_TRAINING = 1.25
_COMPARISONS = 2
_LEAST_CALLS_MEASURED = 4


class CallsInFlight:
    """Chooses the number of calls that a worker runs at a time, by speed.

    Several calls hide the time that each waits for messages, but slow each
    other down if processors are scarce. It begins with a number that suits
    most jobs, alternates it with others, and keeps one that is clearly faster.
    In training it tries others only when the loss no longer falls fast. It goes
    back to the first number if the loss jumps during trials or with more calls.

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
        course: LossCourse | None = None,
    ) -> None:
        """Starts without measurements.

        Args:
            num_workers: Number of workers.
            at_first: Number of calls of each worker until more is known.
            most: Largest number; if it is `at_first`, that is kept.
            least: Smallest number.
            name: Name of the model, for messages.
            course: Course of the training loss; None if steps do not train.
        """
        self._num_workers = num_workers
        self._at_first = at_first
        self._most = most
        self._least = least
        self._name = name
        self._lock = threading.Lock()
        # End of each lane's latest call.
        self._ends: dict[int, float] = {}
        # Steps per second of all workers, by the number of calls of each.
        self._speeds: dict[int, list[float]] = {}
        self._is_kept = at_first == most
        self._times_as_fast = (
            _TIMES_AS_FAST if course is None else _TIMES_AS_FAST_IN_TRAINING
        )
        self._course = None if self._is_kept else course
        self._may_try = self._course is None
        self._trials = self._best()
        self._number = at_first
        self._since = 0.0
        self._num_to_pass_over = 0
        self._measured: list[float] = []
        if self._may_try and not self._is_kept:
            self._begin(next(self._trials), 0.0)

    @property
    def number(self) -> int:
        """Number of calls that each worker should run at a time."""
        return self._number

    @property
    def is_kept(self) -> bool:
        """True if nothing is left to try, unless the loss jumps."""
        return self._is_kept

    @property
    def raised_speed(self) -> float | None:
        """Steps per second of all workers, if the number of calls was raised.

        None if it was not raised, or is not kept yet.
        """
        with self._lock:
            if not self._is_kept or self._number <= self._at_first:
                return None
            return statistics.median(self._speeds[self._number])

    @property
    def watches_loss(self) -> bool:
        """True if `observe_loss` uses losses."""
        return self._course is not None

    def set_workers(self, num_workers: int, now: float) -> bool:
        """Sets the number of workers; measures again if it is another one.

        Args:
            num_workers: Number of workers.
            now: The time.

        Returns:
            Whether it is another one.
        """
        with self._lock:
            if num_workers == self._num_workers:
                return False
            self._num_workers = num_workers
        self.measure_again(now)
        return True

    def went_idle(self) -> None:
        """Records that no call was running for a while."""
        with self._lock:
            self._ends.clear()

    def begin_epoch(self) -> None:
        """Records that no call runs, and that metrics were reset."""
        with self._lock:
            self._ends.clear()
            if self._course is not None:
                self._course.begin_epoch()

    def observe_loss(
        self, num_steps: int, lane: int, mean: float | None, now: float
    ) -> None:
        """Records the report of a call of training.

        Args:
            num_steps: Number of steps of the call.
            lane: Number of its lane.
            mean: The mean loss of this lane's steps since it was last known,
                or of some of them; None: unknown.
            now: Time in seconds.
        """
        with self._lock:
            course = self._course
            if course is None:
                return
            course.observe(lane, num_steps, mean)
            has_settled = not self._may_try and not course.falls_fast
            if has_settled:
                self._may_try = True
                self._begin(next(self._trials), now)
            has_suffered = self._may_try and course.has_jumped
            if self._is_kept and self._number == self._at_first:
                has_suffered = False
            if has_suffered:
                course.begin_again()
                self._may_try = self._is_kept = False
                self._speeds.clear()
                self._trials = self._best()
                self._number = self._at_first
        if has_suffered:
            _logger.info(
                "The training loss of %s has jumped while more calls of a "
                "worker ran at a time, or were tried: it runs %d at a time "
                "until the loss has settled again, for %d steps at least.",
                self._name or "the model",
                self._at_first,
                course.steps_at_least,
            )
        if not has_settled:
            return
        _logger.info(
            "After %d steps, the training loss of %s no longer falls fast: "
            "from now on more than %d calls of each worker at a time are "
            "tried, and kept if they are clearly faster.",
            course.steps,
            self._name or "the model",
            self._at_first,
        )

    def measure_again(self, now: float) -> None:
        """Discards measurements, because calls have changed.

        Args:
            now: Time in seconds.
        """
        with self._lock:
            if not self._is_kept:
                self._speeds.clear()
                self._trials = self._best()
                if self._may_try:
                    self._begin(next(self._trials), now)

    def observe(self, num_steps: int, lane: int, now: float) -> None:
        """Records the end of a call with about as many steps as others.

        Args:
            num_steps: Number of steps of the call.
            lane: Number of its lane.
            now: Time in seconds.
        """
        with self._lock:
            if self._is_kept or not self._may_try:
                return
            before, self._ends[lane] = self._ends.get(lane), now
            # Includes the time between calls, which may be the bottleneck.
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
            "max_closures_in_flight_per_worker of tfps.SchedulingOptions "
            "says otherwise. Steps per second of all workers were %s.",
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
        """Starts to measure with another number, or again with the same."""
        self._number = number
        # Earlier calls ran beside more or fewer calls; and one call of each
        # lane may have overlapped with the end of such a call.
        self._since = now
        self._num_to_pass_over = self._lanes
        self._measured = []

    def _best(self) -> Generator[int, float, int]:
        """Yields numbers to measure, is sent their speeds; returns the best."""
        best = self._at_first
        while best < self._most:
            if not (yield from self._is_faster(best + 1, best)):
                break
            best += 1
        may_be_fewer = best == self._at_first > self._least
        if may_be_fewer and (yield from self._is_faster(best - 1, best)):
            best -= 1
        return best

    def _is_faster(self, number: int, than: int) -> Generator[int, float, bool]:
        for _ in range(_COMPARISONS):
            before = yield than
            if (yield number) < self._times_as_fast * before:
                return False
        return True
