"""The rates at which workers make steps. Pure: no TensorFlow, no clock."""

import collections
import dataclasses
import functools
import operator
import statistics
import threading
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Sequence
from typing import NamedTuple

# Calls of a worker that its rate is computed from: the latest ones. Short calls
# of a lane that follow one another count as one.
_WINDOW = 16
# Fewer calls, or less time in them, say little: a checkpoint may have been
# written, or another program may have begun on the machine.
_LEAST_CALLS = 5
_LEAST_SECONDS = 2.0
# Kinds of work that are remembered: of a `fit`, and of functions scheduled in
# turn.
_MOST_KINDS = 8


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


@dataclasses.dataclass(frozen=True)
class WorkerRate:
    """The rate of one worker, from its latest calls.

    Attributes:
        worker_index: Index of the worker.
        work: What it runs: "fit of <model>", or the name of a function.
        steps_per_second: Number of steps in a second, by all lanes together.
            The time in which a lane has nothing to do does not count.
        seconds_per_step: Time of a step, in one call.
        input_share: Share of that time in which steps wait for input, from 0
            to 1; None if nobody knows.
        num_steps: Number of steps that this is computed from.
        num_retries: Number of functions that did not complete on the worker
            and were run again, since the coordinator was created.
        expected_staleness: Number of steps that the other workers make during
            one of its steps: an estimate of the staleness of its updates
            in asynchronous training. None for steps that workers make together.
    """

    worker_index: int
    work: str
    steps_per_second: float
    seconds_per_step: float
    input_share: float | None
    num_steps: int
    num_retries: int
    expected_staleness: float | None


@dataclasses.dataclass(frozen=True)
class SlowWorker:
    """A worker that is slower than the others.

    Attributes:
        worker_index: Index of the worker.
        generation: Its generation.
        steps_per_second: Its rate.
        median_steps_per_second: The median of the rates of the others. If
            workers make steps together, all have the same rate, and this is
            the one that they would have.
        excess_seconds: Seconds by which its step takes longer than the
            median of the others.
        input_excess_seconds: The part of it that is longer waits for input;
            None if nobody knows.
        is_waited_for: Whether workers make steps together.
    """

    worker_index: int
    generation: int
    steps_per_second: float
    median_steps_per_second: float
    excess_seconds: float
    input_excess_seconds: float | None
    is_waited_for: bool = False


class Comparison(NamedTuple):
    """The workers of a kind of work, compared with each other.

    Attributes:
        slow: Those that are slow.
        even: Indices of those that are about as fast as the others. Those in
            between are in neither.
    """

    slow: tuple[SlowWorker, ...]
    even: frozenset[int]


class WorkerRates:
    """The rates of all workers, by the kind of work.

    Threading: safe from any thread. Guarded by `_lock`: everything.
    """

    def __init__(self) -> None:
        """Starts without observations."""
        self._lock = threading.Lock()
        # By kind, the latest one last; then by worker.
        self._kinds: dict[Hashable, _Kind] = {}
        self._num_retries: collections.Counter[int] = collections.Counter()

    def observe(
        self,
        kind: Hashable,
        work: str,
        worker: tuple[int, int],
        lane_index: int,
        made: Observation,
        *,
        together: bool = False,
    ) -> None:
        """Records the end of a call.

        The first call of a lane does not count: the worker prepares the
        function, and fills its pipelines.

        Args:
            kind: Rates are compared among calls of one kind.
            work: A name of the kind, for people.
            worker: Index and generation of the worker.
            lane_index: The lane.
            made: The call.
            together: Whether workers wait for each other in such calls.
        """
        with self._lock:
            of_kind = self._kinds.pop(kind, None)
            if of_kind is None:
                of_kind = _Kind(work, {}, {}, together=together)
            self._kinds[kind] = of_kind
            if len(self._kinds) > _MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]
            worker_index, generation = worker
            window = of_kind.windows.get(worker_index)
            if window is None or window.generation < generation:
                window = of_kind.windows[worker_index] = _Window(generation)
            if window.generation == generation:
                window.add(lane_index, made)

    def note_retry(self, worker_index: int) -> None:
        """Records that a function did not complete on a worker."""
        with self._lock:
            self._num_retries[worker_index] += 1

    def compare(
        self, kind: Hashable, present: Collection[int], fraction: float
    ) -> Comparison:
        """Compares the workers with each other.

        Slow is a worker whose rate is below the fraction of the median of the
        rates of the others, and so is that of most of its calls: one call that
        takes long makes no worker slow. A worker is even with the others again
        in the middle between the fraction and their rate.

        If workers make steps together, they have the same rate. Then a worker
        is slow whose steps would take less than the fraction of their time if
        its input were as fast as that of others. Nothing else is known.

        Args:
            kind: The kind of work.
            present: Indices of the workers that take part.
            fraction: The fraction, between 0 and 1.

        Returns:
            The comparison; of no workers where fewer than two have made enough
            calls.
        """
        with self._lock:
            of_kind = self._kinds.get(kind)
            if of_kind is None:
                return Comparison((), frozenset())
            windows = {
                index: window
                for index, window in of_kind.windows.items()
                if index in present and window.is_enough
            }
            speeds = {index: each.speed() for index, each in windows.items()}
        if of_kind.together:
            return _by_input(windows, speeds, fraction)
        slow, even, relative = [], set(), {}
        for index, own in speeds.items():
            others = [each for i, each in speeds.items() if i != index]
            if not others:
                break
            rate = statistics.median(each.steps_per_second for each in others)
            middle = statistics.median(each.median_seconds for each in others)
            relative[index] = min(1.0, middle / own.median_seconds)
            if own.steps_per_second >= (1 + fraction) / 2 * rate:
                even.add(index)
            elif (
                own.steps_per_second < fraction * rate
                and fraction * own.median_seconds > middle
            ):
                slow.append(
                    SlowWorker(
                        index,
                        windows[index].generation,
                        own.steps_per_second,
                        rate,
                        own.seconds_per_step
                        - statistics.median(o.seconds_per_step for o in others),
                        _input_excess(own, others),
                    )
                )
        with self._lock:
            of_kind.relative.clear()
            of_kind.relative.update(relative)
        return Comparison(tuple(slow), frozenset(even))

    def relative(self, kind: Hashable, worker_index: int) -> float:
        """Returns how fast a worker is, as a part of the others' median.

        Args:
            kind: The kind of work.
            worker_index: The worker.

        Returns:
            A number as of the last comparison, at most 1; that is also the
            number of a worker of which nothing is known.
        """
        with self._lock:
            of_kind = self._kinds.get(kind)
            relative = of_kind.relative if of_kind else {}
            return relative.get(worker_index, 1.0)

    def rates(self, present: Collection[int]) -> list[WorkerRate]:
        """Returns the rates of the kind of work that was observed last.

        Args:
            present: Indices of the workers that take part. Those that have
                made no call are left out.
        """
        with self._lock:
            if not self._kinds:
                return []
            of_kind = self._kinds[next(reversed(self._kinds))]
            speeds = {
                index: window.speed()
                for index, window in sorted(of_kind.windows.items())
                if index in present and window.made
            }
            retries = self._num_retries.copy()
        total = sum(each.steps_per_second for each in speeds.values())
        return [
            WorkerRate(
                index,
                of_kind.work,
                speed.steps_per_second,
                speed.seconds_per_step,
                None
                if speed.input_seconds is None
                else min(1.0, speed.input_seconds / speed.seconds_per_step),
                speed.num_steps,
                retries[index],
                None
                if of_kind.together
                else speed.seconds_per_step * (total - speed.steps_per_second),
            )
            for index, speed in speeds.items()
        ]


class _Speed(NamedTuple):
    """Speed of a worker, by the calls of a window."""

    num_steps: int
    steps_per_second: float
    # Of a step in one call: the mean, and the median of the calls.
    seconds_per_step: float
    median_seconds: float
    # Of the mean.
    input_seconds: float | None


class _Window:
    """The latest calls of one generation of a worker."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        # Each with its lane.
        self._made: collections.deque[tuple[int, Observation]] = (
            collections.deque(maxlen=_WINDOW)
        )
        self._lanes: set[int] = set()

    @property
    def made(self) -> list[Observation]:
        return [made for _, made in self._made]

    def add(self, lane_index: int, made: Observation) -> None:
        if lane_index not in self._lanes:
            self._lanes.add(lane_index)
            return
        if not made.num_steps or made.seconds <= 0:
            return
        if self._made:
            lane, last = self._made[-1]
            if lane == lane_index and last.seconds < _LEAST_SECONDS / _WINDOW:
                self._made[-1] = lane, last + made
                return
        self._made.append((lane_index, made))

    @property
    def is_enough(self) -> bool:
        """True if the calls say how fast the worker is."""
        return len(self._made) >= _LEAST_CALLS and (
            sum(made.seconds for made in self.made) >= _LEAST_SECONDS
        )

    def speed(self) -> _Speed:
        by_lane: dict[int, Observation] = {}
        for lane, made in self._made:
            before = by_lane.get(lane)
            by_lane[lane] = made if before is None else before + made
        total = functools.reduce(operator.add, by_lane.values())
        return _Speed(
            total.num_steps,
            sum(each.num_steps / each.seconds for each in by_lane.values()),
            total.seconds / total.num_steps,
            statistics.median(
                each.seconds / each.num_steps for each in self.made
            ),
            None
            if total.input_seconds is None
            else total.input_seconds / total.num_steps,
        )


class _Kind(NamedTuple):
    work: str
    windows: dict[int, _Window]
    # The speed of each worker as a part of the others', by the last comparison.
    relative: dict[int, float]
    together: bool


def _by_input(
    windows: dict[int, _Window], speeds: dict[int, _Speed], fraction: float
) -> Comparison:
    """Compares workers that make steps together."""
    slow, even = [], set()
    for index, own in speeds.items():
        others = [each for i, each in speeds.items() if i != index]
        excess = _input_excess(own, others) if others else None
        if excess is None:
            continue
        part = excess / own.seconds_per_step
        if part < (1 - fraction) / 2:
            even.add(index)
        elif part > 1 - fraction:
            # A worker makes no step in less than no time.
            without = max(0.1, 1 - part)
            slow.append(
                SlowWorker(
                    index,
                    windows[index].generation,
                    own.steps_per_second,
                    own.steps_per_second / without,
                    excess,
                    excess,
                    is_waited_for=True,
                )
            )
    return Comparison(tuple(slow), frozenset(even))


def _input_excess(own: _Speed, others: Sequence[_Speed]) -> float | None:
    inputs = [
        each.input_seconds for each in others if each.input_seconds is not None
    ]
    if own.input_seconds is None or len(inputs) < len(others):
        return None
    return own.input_seconds - statistics.median(inputs)
