"""Tests of the lanes that wake up, on lanes without threads.

Tests with threads, and of limits and pauses alone, are in those of the queue.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.closures.shared_ledger import SharedLedger
from tfps_plugin.coordinator.testing import FakeListener

_NUM_WORKERS = 3
_NUM_LANES = 2
_CAPACITY = 6


class _SleepsError(Exception):
    """Ends the turn of a lane that would sleep."""


@dataclasses.dataclass(frozen=True)
class _Lane:
    worker_index: int
    number: int


class _Bench:
    """A queue whose lanes move one at a time, when a test says so.

    Attributes:
        queue: The queue.
        ledger: Its closures.
        scheduler: Its lanes.
        coming: Lanes on their way to the queue, in the order of their start.
        running: What lanes run.
        told: The ends of all closures.
    """

    def __init__(
        self, num_workers: int = _NUM_WORKERS, num_lanes: int = _NUM_LANES
    ) -> None:
        shared = SharedLedger(_CAPACITY)
        self.ledger = shared.ledger
        self.scheduler = shared.scheduler
        self.scheduler.sleep = self._sleep  # type: ignore[method-assign]
        self.queue = ClosureQueue(shared)
        self.coming: list[_Lane] = []
        self.running: list[tuple[_Lane, Closure]] = []
        self.told = FakeListener()
        self.lanes = [
            _Lane(worker_index, number)
            for number in reversed(range(num_lanes))
            for worker_index in range(num_workers)
        ]
        for lane in self.lanes:
            self.queue.lanes.add(
                lane.worker_index, self._start_of(lane), lane.number
            )

    def _start_of(self, lane: _Lane) -> Callable[[], None]:
        return lambda: self.coming.append(lane)

    def _sleep(self, worker_index: int, number: int = 0) -> None:
        lane = _Lane(worker_index, number)
        self.scheduler.add(worker_index, self._start_of(lane), number)
        raise _SleepsError

    def put(self, bound_to: int | None = None) -> Closure:
        closure = Closure(lambda: None, self.told, bound_to)
        self.queue.put(closure)
        return closure

    def arrive(self, index: int = 0) -> Closure | None:
        """Has a lane that is on its way get what it can."""
        lane = self.coming.pop(index)
        try:
            closure = self.queue.lanes.get(lane.worker_index, lane.number)
        except _SleepsError:
            return None
        assert closure is not None
        self.running.append((lane, closure))
        return closure

    def arrive_all(self) -> list[_Lane]:
        """Has all lanes get what they can; returns them in their order."""
        arrived: list[_Lane] = []
        while self.coming:
            arrived.append(self.coming[0])
            # More would wake each other for nothing, without end.
            assert len(arrived) <= 10 * len(self.lanes)
            self.arrive()
        return arrived

    def end(
        self, how: Callable[[Closure, int], Any], index: int = 0
    ) -> Closure:
        """Ends what a lane runs; the lane is on its way then."""
        lane, closure = self.running.pop(index)
        how(closure, closure.num_attempts)
        self.coming.append(lane)
        return closure

    def done(self, closure: Closure, attempt: int) -> None:
        self.queue.lanes.done(closure, attempt, None)

    @property
    def may_wake(self) -> list[_Lane]:
        """Sleeping lanes that could take one of the closures that wait."""
        ledger = self.ledger
        busy = {*self.coming, *(lane for lane, _ in self.running)}
        return [
            lane
            for lane in self.lanes
            if lane not in busy
            and self.scheduler.may_take(lane.worker_index, lane.number)
            and (
                ledger.num_unbound or lane.worker_index in ledger.bound_workers
            )
        ]


def test_a_lane_of_its_worker_comes_for_a_bound_closure() -> None:
    bench = _Bench()
    for worker_index in (2, 0, 2):
        closure = bench.put(worker_index)
        (lane,) = bench.coming
        assert lane.worker_index == worker_index
        assert bench.arrive() is closure
    assert not bench.coming


def test_no_other_lane_comes_for_a_bound_closure() -> None:
    bench = _Bench(num_lanes=1)
    closures = [bench.put(1) for _ in range(2)]
    assert bench.arrive() is closures[0]
    assert not bench.coming, "the only lane of the worker is busy"
    bench.put()
    assert [lane.worker_index for lane in bench.coming] == [0]
    bench.arrive()
    assert not bench.coming
    bench.end(bench.done)
    assert bench.arrive() is closures[1]


def test_bound_closures_are_found_while_another_lane_is_on_its_way() -> None:
    bench = _Bench(num_lanes=1)
    bench.put()
    for worker_index in (1, 2):
        bench.put(worker_index)
    assert len(bench.coming) == 1, "lanes come one at a time"
    assert [lane.worker_index for lane in bench.arrive_all()] == [0, 1, 2]
    assert [closure.bound_to for _, closure in bench.running] == [None, 1, 2]


def test_one_that_comes_in_vain_wakes_the_next() -> None:
    bench = _Bench(num_lanes=1)
    bench.put()
    bench.put(1)
    assert bench.queue.cancel_queued() == 2
    bench.put(2)
    assert bench.arrive() is None
    assert [lane.worker_index for lane in bench.coming] == [2]
    assert bench.arrive() is not None


def test_bound_closures_go_first() -> None:
    bench = _Bench(num_workers=1, num_lanes=1)
    unbound, bound = bench.put(), bench.put(0)
    assert bench.arrive() is bound
    bench.end(bench.done)
    assert bench.arrive() is unbound


def test_a_lane_that_exceeds_the_limit_leaves_it_to_another() -> None:
    bench = _Bench(num_workers=2)
    for worker_index in (0, 1):
        for _ in range(_NUM_LANES):
            bench.put(worker_index)
    bench.arrive_all()
    # Lane 1 of worker 1 is the last to sleep, and so the first to be woken.
    while bench.running:
        bench.running.sort(key=lambda each: each[0].number)
        bench.end(bench.done)
        bench.arrive()
    bench.queue.lanes.limit(1)
    closure = bench.put(1)
    assert bench.arrive_all() == [_Lane(1, 1), _Lane(1, 0)]
    assert [each for _, each in bench.running] == [closure]
    # The limit holds for them, too.
    bench.put(1)
    assert bench.arrive_all() == []
    bench.queue.lanes.limit(2)
    assert bench.arrive_all() == [_Lane(1, 1)]
    assert len(bench.running) == 2


def _cannot_start() -> None:
    raise RuntimeError("can't start new thread")


def test_where_no_lane_of_a_worker_can_start_it_is_said() -> None:
    bench = _Bench(num_workers=1, num_lanes=1)
    bench.queue.lanes.add(1, _cannot_start)
    bench.put()
    assert bench.arrive() is not None
    closure = bench.put(1)
    with pytest.raises(RuntimeError, match="start new thread"):
        bench.queue.raise_error_at_once()
    assert closure.state is ClosureState.CANCELLED


def test_another_lane_of_the_worker_comes_when_one_cannot_start() -> None:
    bench = _Bench(num_workers=2, num_lanes=1)
    bench.queue.lanes.add(1, _cannot_start, 1)
    closure = bench.put(1)
    assert bench.arrive() is closure
    bench.put(1)
    assert not bench.queue.has_error, "the busy lane takes it later"


@st.composite
def _actions(draw: st.DrawFn) -> tuple[str, Any]:
    name = draw(
        st.sampled_from(
            [
                *("put", "arrive", "arrive all", "done"),
                *("put back", "fail", "raise", "cancel"),
                *("pause", "resume", "limit"),
            ]
        )
    )
    values = {
        "put": st.sampled_from([None, *range(_NUM_WORKERS)]),
        "pause": st.integers(0, _NUM_WORKERS - 1),
        "resume": st.integers(0, _NUM_WORKERS - 1),
        "limit": st.integers(1, _NUM_LANES),
    }
    return name, draw(values.get(name, st.integers(0, 9)))


@hypothesis.given(st.lists(_actions(), max_size=60))
def test_no_closure_waits_while_a_lane_that_may_take_it_sleeps(
    actions: list[tuple[str, Any]],
) -> None:
    bench = _Bench()
    ledger = bench.ledger
    closures: list[Closure] = []

    def arrive(index: int) -> None:
        lane = bench.coming[index]
        had_bound = lane.worker_index in ledger.bound_workers
        closure = bench.arrive(index)
        if closure is not None:
            assert closure.bound_to in (None, lane.worker_index)
            assert had_bound == (closure.bound_to is not None)

    def fail(closure: Closure, attempt: int) -> None:
        bench.queue.lanes.failed(closure, attempt, RuntimeError("step"))

    ends: dict[str, Callable[[Closure, int], Any]] = {
        "done": bench.done,
        "put back": bench.queue.lanes.put_back,
        "fail": fail,
    }
    for name, value in actions:
        if name == "put" and ledger.has_room and not ledger.has_error:
            closures.append(bench.put(value))
        elif name == "arrive" and bench.coming:
            arrive(value % len(bench.coming))
        elif name == "arrive all":
            bench.arrive_all()
            assert not bench.may_wake
        elif name in ends and bench.running:
            bench.end(ends[name], value % len(bench.running))
        elif name == "raise":
            ledger.take_error(at_once=True)
        elif name == "cancel" and value == 0:
            bench.queue.cancel_queued()
        elif name == "pause":
            bench.queue.lanes.tell(bench.queue.lanes.pause(value))
        elif name == "resume":
            bench.queue.lanes.resume(value)
        elif name == "limit":
            bench.queue.lanes.limit(value)
        assert bench.coming or not bench.may_wake
        assert not any(map(bench.scheduler.is_paused, ledger.bound_workers))
    for worker_index in range(_NUM_WORKERS):
        bench.queue.lanes.resume(worker_index)
    while bench.coming or bench.running:
        bench.arrive_all()
        assert not bench.may_wake
        if bench.running:
            bench.end(bench.done)
    assert ledger.is_idle
    assert len(bench.told.told) == len(closures)
    assert all(
        closure.num_attempts <= 1
        for closure in closures
        if closure.bound_to is not None
    )
