"""How many steps go into one call of a worker. Pure: no TensorFlow."""

import collections
import logging
import math
import statistics
import threading

from tfps_plugin.training.steps.traced import rounds

_logger = logging.getLogger("tfps_plugin")

# Until it is known how long steps take. Beyond this, what a call costs hardly
# shows, if steps are of a common size.
MOST_STEPS_AT_FIRST = 10
# A call that takes so long costs little beside its steps, and still ends soon
# enough for whoever waits for it: progress, callbacks, workers that were lost.
_SECONDS_OF_A_CALL = 1.0
# Of many lanes each call may take longer: so many end in a second all the same,
# and each costs the one chief some milliseconds.
_CALLS_A_SECOND = 4
_MOST_SECONDS_OF_A_CALL = 4.0
# Of one that takes so much longer, steps are not what they were when measured.
_TOO_MANY_TIMES = 4
_NUMBERS = (1, 2, 5, 10, 20, 48, 100)
# For every lane; the first ones trace, make copies and fill pipelines.
_CALLS_NOT_MEASURED = 1
_CALLS_MEASURED = 2
_CALLS_LOOKED_BACK_AT = 4
# With fewer calls than this per lane and epoch, the last calls of an epoch
# leave workers idle, and the progress bar hardly moves.
_CLOSURES_PER_LANE_AND_EPOCH = 4
_LEAST_PART_OF_A_CALL = 4


def choose_steps_per_closure(
    num_steps: int, num_lanes: int, most: int = MOST_STEPS_AT_FIRST
) -> int:
    """How many steps to pack when the user has not said.

    Args:
        num_steps: Steps of one epoch; where nobody knows that, of the one
            before, or those of this epoch so far.
        num_lanes: How many closures run at the same time.
        most: No more than this.

    Returns:
        At least 1; whole rounds, where a call has enough for some.
    """
    closures = _CLOSURES_PER_LANE_AND_EPOCH * num_lanes
    return rounds.in_whole_ones(max(1, min(most, num_steps // closures)))


def steps_near_the_end(left: int, num_lanes: int, most: int) -> int:
    """How many steps of an epoch to make in one go, while others make theirs.

    Towards the end they become fewer, so that no lane waits long for another
    one's last steps (guided self-scheduling: Polychronopoulos and Kuck, 1987).

    Args:
        left: Steps of the epoch that nobody has begun.
        num_lanes: How many share them.
        most: No more than this, and not much less than a fourth of it: small
            calls cost more.

    Returns:
        At least 1.
    """
    share = math.ceil(left / (2 * num_lanes))
    return max(1, most // _LEAST_PART_OF_A_CALL, min(most, share))


def seconds_of_a_call(num_lanes: int) -> float:
    """How long a call should take.

    Args:
        num_lanes: How many closures run at the same time.
    """
    return min(
        _MOST_SECONDS_OF_A_CALL,
        max(_SECONDS_OF_A_CALL, num_lanes / _CALLS_A_SECOND),
    )


def most_steps(
    seconds_of_a_step: float, seconds: float = _SECONDS_OF_A_CALL
) -> int:
    """How many steps to pack, if steps take so long.

    Args:
        seconds_of_a_step: On its worker, while others run beside it.
        seconds: How long a call should take.

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
    """How many steps to pack, by how long those of the first calls took.

    Chosen once and kept, unless a call takes much longer than it should, or
    more steps would fit: the first calls run beside others that trace, or
    while caches and pipelines are filled.

    Threading: safe from several threads. Guarded by `_lock`: everything that
    changes.
    """

    def __init__(self, num_lanes: int, name: str = "") -> None:
        """Knows nothing yet.

        Args:
            num_lanes: How many closures run at the same time.
            name: Whose steps, for people.
        """
        self._name = name
        self._seconds = seconds_of_a_call(num_lanes)
        self._lock = threading.Lock()
        self._num_to_pass_over = _CALLS_NOT_MEASURED * num_lanes
        self._num_to_measure = _CALLS_MEASURED * num_lanes
        self._measured: list[float] = []
        # Of the latest calls that had as many steps as were chosen.
        self._latest: collections.deque[float] = collections.deque(
            maxlen=_CALLS_LOOKED_BACK_AT * num_lanes
        )
        self._most_steps = MOST_STEPS_AT_FIRST
        self._seconds_of_a_step: float | None = None
        self._steps_so_far = 0

    @property
    def steps_so_far(self) -> int:
        """How many steps calls have made."""
        return self._steps_so_far

    @property
    def most_steps(self) -> int:
        """How many steps to pack at most."""
        return self._most_steps

    @property
    def seconds_of_a_step(self) -> float | None:
        """How long a step takes on its worker; None: not known yet."""
        return self._seconds_of_a_step

    @property
    def is_known(self) -> bool:
        """Whether enough calls have ended to choose by."""
        return len(self._measured) >= self._num_to_measure

    def pass_over_first_calls(self, num_lanes: int) -> None:
        """Passes over calls until each lane has run a new function once.

        Args:
            num_lanes: How many closures run at the same time.
        """
        with self._lock:
            # What each runs now, and its first one of the new function.
            self._num_to_pass_over += 2 * num_lanes

    def observe(self, num_steps: int, seconds: float) -> None:
        """Notes that a call has ended.

        Args:
            num_steps: How many steps it made.
            seconds: How long it took.
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
                    # Other input than before, or other workers.
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
        """Seconds of a step; infinite if too few calls are known."""
        if num_steps == self._most_steps:
            self._latest.append(seconds / num_steps)
        if len(self._latest) < (self._latest.maxlen or 0):
            return math.inf
        return statistics.median(self._latest)
