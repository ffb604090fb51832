"""The latest calls of a worker, and its speed by them. Pure: no clock."""

import collections
import functools
import operator
import statistics
from collections.abc import Iterator
from typing import NamedTuple

# Spans of each lane that the speed is computed from: the latest ones.
_WINDOW = 16
# Fewer spans say little; each takes part with most of its weight.
_LEAST_SPANS = 6
# Nor does less time of each lane: another program may have begun on the
# machine, and end soon.
_LEAST_SECONDS = 16.0
# Short calls are added up to spans of that part of it. So a hiccup of a second
# makes one span long, and not many.
_SPANS_IN_LEAST_SECONDS = 8
# As many give a first idea.
_SPANS_OF_A_GUESS = 3


class Observation(NamedTuple):
    """One call of a worker, or several short ones.

    Attributes:
        num_steps: Number of its steps.
        seconds: Time that it took.
        input_seconds: Seconds of it in which steps waited for input; None:
            unknown.
    """

    num_steps: int
    seconds: float
    input_seconds: float | None = None

    def __add__(self, other: "Observation") -> "Observation":  # type: ignore[override]
        """Returns both calls as one."""
        waits = None
        if self.input_seconds is not None and other.input_seconds is not None:
            waits = self.input_seconds + other.input_seconds
        return Observation(
            self.num_steps + other.num_steps,
            self.seconds + other.seconds,
            waits,
        )


class Speed(NamedTuple):
    """Speed of a worker by some of its calls.

    Attributes:
        num_steps: Number of steps.
        steps_per_second: Sum of the rates of its lanes.
        seconds_per_step: Time of a step in one call: the mean.
        median_seconds: The median of the spans.
        most_seconds: Three in four spans take at least so long a step.
        input_seconds: Seconds of `seconds_per_step` that are waits for input;
            here and below None: unknown.
        median_input_seconds: The median of the spans.
        most_input_seconds: Three in four spans wait at least so long a step.
    """

    num_steps: int
    steps_per_second: float
    seconds_per_step: float
    median_seconds: float
    most_seconds: float
    input_seconds: float | None
    median_input_seconds: float | None
    most_input_seconds: float | None


class Window:
    """The latest calls of one generation of a worker.

    Not thread-safe.

    Attributes:
        generation: The generation.
    """

    def __init__(self, generation: int) -> None:
        """Starts without calls."""
        self.generation = generation
        self._lanes: dict[int, _Lane] = {}
        self._num_spans = 0

    def add(self, lane_index: int, made: Observation) -> None:
        """Adds a call.

        The first call of a lane does not count: the worker prepares the
        function, and fills its pipelines. Nor do calls without steps.

        Args:
            lane_index: The lane.
            made: The call.
        """
        if not made.num_steps or made.seconds <= 0:
            return
        if made.input_seconds is not None:
            # The clock of the worker may be set while it waits.
            waits = min(max(0.0, made.input_seconds), made.seconds)
            made = made._replace(input_seconds=waits)
        lane = self._lanes.get(lane_index)
        if lane is None:
            self._lanes[lane_index] = _Lane(self._num_spans)
            return
        self._num_spans += lane.add(made)
        lane.ended_at = self._num_spans
        # Lanes that are no longer in use say nothing of the present rate.
        for index, each in tuple(self._lanes.items()):
            if self._num_spans - each.ended_at > _WINDOW:
                del self._lanes[index]

    @property
    def has_calls(self) -> bool:
        """True if some calls count."""
        return any(lane.all_calls for lane in self._lanes.values())

    @property
    def gives_an_idea(self) -> bool:
        """True if the spans give a first idea of the speed."""
        return sum(1 for _ in self._spans()) >= _SPANS_OF_A_GUESS

    @property
    def is_enough(self) -> bool:
        """True if the spans say how fast the worker is."""
        num_lanes = sum(1 for lane in self._lanes.values() if lane.spans)
        num_spans, seconds = 0, 0.0
        for span in self._spans():
            num_spans += 1
            seconds += span.seconds
        return (
            num_spans >= max(1, num_lanes) * _LEAST_SPANS
            and seconds >= num_lanes * _LEAST_SECONDS
        )

    def speed(self, *, of_all_calls: bool = False) -> Speed:
        """Returns the speed.

        Args:
            of_all_calls: Whether calls count that do not make a span yet.
                Otherwise there has to be a span.
        """
        by_lane = [
            calls
            for lane in self._lanes.values()
            if (calls := lane.all_calls if of_all_calls else list(lane.spans))
        ]
        sums = [functools.reduce(operator.add, calls) for calls in by_lane]
        total = functools.reduce(operator.add, sums)
        spans = [span for calls in by_lane for span in calls]
        seconds = sorted(span.seconds / span.num_steps for span in spans)
        waits = sorted(
            span.input_seconds / span.num_steps
            for span in spans
            if span.input_seconds is not None
        )
        are_known = len(waits) == len(spans)
        return Speed(
            total.num_steps,
            sum(each.num_steps / each.seconds for each in sums),
            total.seconds / total.num_steps,
            statistics.median(seconds),
            _lower_quartile(seconds),
            None
            if total.input_seconds is None
            else total.input_seconds / total.num_steps,
            statistics.median(waits) if are_known else None,
            _lower_quartile(waits) if are_known else None,
        )

    def _spans(self) -> Iterator[Observation]:
        for lane in self._lanes.values():
            yield from lane.spans


class _Lane:
    """The latest calls of a lane: spans, and calls that are too short yet."""

    def __init__(self, ended_at: int) -> None:
        self.spans: collections.deque[Observation] = collections.deque(
            maxlen=_WINDOW
        )
        self._short: Observation | None = None
        # Number of spans of the worker when its latest call ended.
        self.ended_at = ended_at

    @property
    def all_calls(self) -> list[Observation]:
        short = [] if self._short is None else [self._short]
        return [*self.spans, *short]

    def add(self, made: Observation) -> bool:
        """Adds a call; returns whether it completes a span."""
        if self._short is not None:
            made = self._short + made
        if made.seconds < _LEAST_SECONDS / _SPANS_IN_LEAST_SECONDS:
            self._short = made
            return False
        self._short = None
        self.spans.append(made)
        return True


def _lower_quartile(ascending: list[float]) -> float:
    """Returns a value that at least three in four are not below."""
    return ascending[(len(ascending) - 1) // 4]
