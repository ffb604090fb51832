"""The rates at which workers make steps. Pure: no TensorFlow, no clock."""

import collections
import dataclasses
import threading
from collections.abc import Collection
from collections.abc import Hashable
from typing import NamedTuple

from tfps_plugin.coordinator.stragglers import comparison
from tfps_plugin.coordinator.stragglers.comparison import Comparison
from tfps_plugin.coordinator.stragglers.windows import Observation
from tfps_plugin.coordinator.stragglers.windows import Window

# Kinds of work that are remembered: of a `fit`, and of functions scheduled in
# turn.
_MOST_KINDS = 16


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
        expected_staleness: Number of other steps that end during one of its
            steps, on any worker: an estimate of the staleness of its updates
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
        """Records the end of a call; see `Window.add`.

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
                window = of_kind.windows[worker_index] = Window(generation)
            if window.generation == generation:
                window.add(lane_index, made)

    def note_retry(self, worker_index: int) -> None:
        """Records that a function did not complete on a worker."""
        with self._lock:
            self._num_retries[worker_index] += 1

    def num_retries(self) -> dict[int, int]:
        """Returns how many functions did not complete, by worker."""
        with self._lock:
            return dict(self._num_retries)

    def compare(
        self, kind: Hashable, present: Collection[int], fraction: float
    ) -> Comparison:
        """Compares the workers with each other; see `comparison`.

        Args:
            kind: The kind of work.
            present: Indices of the workers that take part.
            fraction: The fraction of the others' median below which a worker is
                slow, between 0 and 1.

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
                if index in present and window.gives_an_idea
            }
            speeds = {index: each.speed() for index, each in windows.items()}
            generations = {i: each.generation for i, each in windows.items()}
            sure = {
                index: speeds[index]
                for index, window in windows.items()
                if window.is_enough
            }
        if of_kind.together:
            return comparison.by_input(sure, generations, fraction)
        relative = comparison.relative_speeds(speeds)
        with self._lock:
            of_kind.relative.clear()
            of_kind.relative.update(relative)
        return comparison.by_rate(sure, generations, fraction)

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
                index: window.speed(of_all_calls=True)
                for index, window in sorted(of_kind.windows.items())
                if index in present and window.has_calls
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
                else speed.input_seconds / speed.seconds_per_step,
                speed.num_steps,
                retries[index],
                # All that end in the time of a step, without itself.
                None
                if of_kind.together
                else max(0.0, speed.seconds_per_step * total - 1),
            )
            for index, speed in speeds.items()
        ]


class _Kind(NamedTuple):
    work: str
    windows: dict[int, Window]
    # The speed of each worker as a part of the others', by the last comparison.
    relative: dict[int, float]
    together: bool
