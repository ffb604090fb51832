"""Number of steps in one call of a worker. Pure: no TensorFlow."""

import collections
import logging
import math
import statistics
import threading

from tfps_plugin.training.steps.traced import rounds

_logger = logging.getLogger("tfps_plugin.training")

# Used until the time of steps is known. With more steps of a typical size, the
# overhead of a call hardly matters.
MOST_STEPS_AT_FIRST = 10
# The overhead of such a call is small, and it still ends soon enough for
# progress, callbacks and the recovery from lost workers.
_SECONDS_OF_A_CALL = 1.0
# With many lanes each call may take longer: as many still end in a second, and
# each costs the single chief some milliseconds.
_CALLS_A_SECOND = 4
_MOST_SECONDS_OF_A_CALL = 4.0
# If a call takes this many times as long, its steps have changed.
_TOO_MANY_TIMES = 4
_NUMBERS = (1, 2, 5, 10, 20, 48, 100)
# For each lane; the first calls trace, create copies and fill pipelines.
_CALLS_NOT_MEASURED = 1
_CALLS_MEASURED = 2
_CALLS_LOOKED_BACK_AT = 4
# With fewer calls than this per lane and epoch, the last calls of an epoch
# leave workers idle, and the progress bar hardly moves.
_CLOSURES_PER_LANE_AND_EPOCH = 4
_LEAST_PART_OF_A_CALL = 4
# Speeds of equal workers differ by less.
_ALMOST = 0.7


def choose_steps_per_closure(
    num_steps: int, num_lanes: int, most: int = MOST_STEPS_AT_FIRST
) -> int:
    """Chooses the number of steps to pack if the user has not set it.

    Args:
        num_steps: Steps of one epoch; if unknown, those of the previous epoch,
            or of this one so far.
        num_lanes: Number of closures that run at the same time.
        most: Largest number of steps.

    Returns:
        At least 1; whole rounds, if a call has enough steps for some.
    """
    closures = _CLOSURES_PER_LANE_AND_EPOCH * num_lanes
    return rounds.in_whole_ones(max(1, min(most, num_steps // closures)))


def steps_near_the_end(left: int, num_lanes: int, most: int) -> int:
    """Returns the number of steps to run in one call, given those left.

    It shrinks towards the end of an epoch, so that no lane waits long for the
    last steps of another (guided self-scheduling: Polychronopoulos and Kuck,
    1987).

    Args:
        left: Steps of the epoch that no lane has started.
        num_lanes: Number of lanes that share them.
        most: Largest number of steps. The result is not much less than a
            fourth of it, because small calls cost more.

    Returns:
        At least 1.
    """
    share = math.ceil(left / (2 * num_lanes))
    return max(1, most // _LEAST_PART_OF_A_CALL, min(most, share))


def steps_of_a_slow_worker(most: int, relative_speed: float) -> int:
    """Returns the number of steps to run in one call of a slow worker.

    Its calls take about as long as those of others, so that none of them holds
    up the end of an epoch (weighted factoring: Hummel, Schmidt, Uma and Wein,
    1996).

    Args:
        most: Number of steps of a call of the others.
        relative_speed: Speed of the worker as a part of that of others, at
            most 1. Workers that are almost as fast make as many steps.

    Returns:
        At least 1.
    """
    if relative_speed >= _ALMOST:
        return most
    return max(1, math.floor(most * relative_speed))


def seconds_of_a_call(num_lanes: int) -> float:
    """Returns the seconds that a call should take.

    Args:
        num_lanes: Number of closures that run at the same time.
    """
    return min(
        _MOST_SECONDS_OF_A_CALL,
        max(_SECONDS_OF_A_CALL, num_lanes / _CALLS_A_SECOND),
    )


def most_steps(
    seconds_of_a_step: float, seconds: float = _SECONDS_OF_A_CALL
) -> int:
    """Returns the number of steps to pack, given the time of a step.

    Args:
        seconds_of_a_step: Time on its worker, while others run beside it.
        seconds: Time that a call should take.

    Returns:
        The largest of a few round numbers that keeps calls short.
    """
    return max(
        (
            number
            for number in _NUMBERS
            if number * seconds_of_a_step <= seconds
        ),
        default=1,
    )


class Pace:
    """Number of steps to pack, chosen by the step time of the first calls.

    It is chosen once and kept, unless a call takes much longer than it should,
    or more steps would fit: the first calls run beside others that trace, or
    while caches and pipelines fill.

    Threading: safe from several threads. Guarded by `_lock`: everything that
    changes.
    """

    def __init__(self, num_lanes: int, name: str = "") -> None:
        """Starts without measurements.

        Args:
            num_lanes: Number of closures that run at the same time.
            name: Name of the model, for messages.
        """
        self._name = name
        self._seconds = seconds_of_a_call(num_lanes)
        self._lock = threading.Lock()
        self._num_to_pass_over = _CALLS_NOT_MEASURED * num_lanes
        self._num_to_measure = _CALLS_MEASURED * num_lanes
        self._measured: list[float] = []
        # Step times of the latest calls with the chosen number of steps.
        self._latest: collections.deque[float] = collections.deque(
            maxlen=_CALLS_LOOKED_BACK_AT * num_lanes
        )
        self._most_steps = MOST_STEPS_AT_FIRST
        self._seconds_of_a_step: float | None = None
        self._steps_so_far = 0

    @property
    def steps_so_far(self) -> int:
        """Number of steps that calls have made."""
        return self._steps_so_far

    @property
    def most_steps(self) -> int:
        """Largest number of steps to pack."""
        return self._most_steps

    @property
    def seconds_of_a_step(self) -> float | None:
        """Seconds that a step takes on its worker; None: not known yet."""
        return self._seconds_of_a_step

    @property
    def is_known(self) -> bool:
        """True if enough calls were measured to choose."""
        return len(self._measured) >= self._num_to_measure

    def pass_over_first_calls(self, num_lanes: int) -> None:
        """Ignores calls until each lane has run a new function once.

        Args:
            num_lanes: Number of closures that run at the same time.
        """
        with self._lock:
            # Each lane's current call, and its first one of the new function.
            self._num_to_pass_over += 2 * num_lanes

    def observe(self, num_steps: int, seconds: float) -> None:
        """Records the end of a call.

        Args:
            num_steps: Number of steps of the call.
            seconds: Time that it took.
        """
        with self._lock:
            if not num_steps:
                return
            self._steps_so_far += num_steps
            if self._num_to_pass_over:
                self._num_to_pass_over -= 1
                return
            if self.is_known:
                if num_steps > 1 and seconds > _TOO_MANY_TIMES * self._seconds:
                    # The input or the workers have changed.
                    self._measured.clear()
                    self._latest.clear()
                    self._most_steps = min(
                        self._most_steps, MOST_STEPS_AT_FIRST
                    )
                    return
                middle = self._middle_of_latest(num_steps, seconds)
                if most_steps(middle, self._seconds) <= self._most_steps:
                    return
            else:
                self._measured.append(seconds / num_steps)
                if not self.is_known:
                    return
                middle = statistics.median(self._measured)
            self._latest.clear()
            self._most_steps = most_steps(middle, self._seconds)
            self._seconds_of_a_step = middle
        _logger.info(
            "A step of %s takes %.3g ms: %d of them make a call of a worker "
            "that is long enough, unless steps_per_closure of "
            "tfps.SchedulingOptions or steps_per_execution of compile() says "
            "otherwise.",
            self._name or "the model",
            1e3 * middle,
            self._most_steps,
        )

    def _middle_of_latest(self, num_steps: int, seconds: float) -> float:
        """Returns the seconds of a step; infinity if too few are known."""
        if num_steps == self._most_steps:
            self._latest.append(seconds / num_steps)
        if len(self._latest) < (self._latest.maxlen or 0):
            return math.inf
        return statistics.median(self._latest)
