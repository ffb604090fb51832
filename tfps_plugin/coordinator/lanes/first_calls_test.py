"""Tests of exclusive first calls."""

from collections.abc import Collection
from typing import Any

import pytest

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.calls.worker_calls import InFlightCall
from tfps_plugin.cluster.calls.worker_calls import WorkerCalls
from tfps_plugin.coordinator.lanes import first_calls


class _NotingCalls(WorkerCalls):
    """Records which calls were exclusive."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bool] = []

    def turn(self, *, exclusive: bool) -> Any:
        self.asked.append(exclusive)
        return super().turn(exclusive=exclusive)


def _step(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number + 1


@pytest.fixture
def calls() -> _NotingCalls:
    return _NotingCalls()


def _on(
    calls: WorkerCalls | None, generation: int = 0, num_changes: int = 0
) -> Any:
    return dispatch_context.dispatching(
        DispatchContext(0, 0, generation, "/device:CPU:0", calls, num_changes)
    )


def test_only_the_first_of_each_life_of_a_worker(calls: _NotingCalls) -> None:
    def step(number: int) -> int:
        return _step(number)

    for generation in (0, 1):
        with _on(calls, generation):
            # However often the wrapper is made.
            assert [first_calls.exclusive(step)(n) for n in (1, 2)] == [2, 3]
    other = _NotingCalls()
    with _on(other):
        first_calls.exclusive(step)(1)
    assert calls.asked == [True, False, True, False]
    assert other.asked == [True]


def test_the_first_after_each_change_of_the_cluster(
    calls: _NotingCalls,
) -> None:
    for num_changes in (0, 2, 2, 4):
        with _on(calls, num_changes=num_changes):
            first_calls.exclusive(_step)(1)
    assert calls.asked == [True, True, False, True]


def test_what_failed_may_not_be_prepared(calls: _NotingCalls) -> None:
    def step(number: int) -> int:
        return _step(number)

    call = first_calls.exclusive(step)
    with _on(calls):
        with pytest.raises(ValueError, match="-1"):
            call(-1)
        call(1)
    assert calls.asked == [True, True]


def test_the_chief_itself_waits_for_nobody() -> None:
    assert first_calls.exclusive(_step)(1) == 2
    with _on(None):
        assert first_calls.exclusive(_step)(1) == 2


class _OtherWorkers:
    """All are there, in their third life."""

    def __init__(self) -> None:
        self.kept: set[int] = set()

    def require(self, workers: Collection[int]) -> dict[int, int]:
        self.kept.update(workers)
        return dict.fromkeys(workers, 2)

    def release(self) -> None:
        self.kept.clear()


def test_other_workers_are_kept_until_the_closure_waits() -> None:
    others, in_flight = _OtherWorkers(), InFlightCall()
    context = DispatchContext(
        *(1, 0, 0, "/device:CPU:0", WorkerCalls()),
        call=in_flight,
        other_workers=others,
    )
    with dispatch_context.dispatching(context):
        assert first_calls.exclusive(_step, workers=(1, 2))(1) == 2
        # It is on the first of the two itself.
        assert (others.kept, in_flight.pinned) == ({2}, {2: 2})
        first_calls.release()
    # Otherwise a wait would end with the call of a worker that it lets go.
    assert (others.kept, in_flight.pinned) == (set(), {})
