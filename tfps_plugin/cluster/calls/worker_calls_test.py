"""Tests of the calls of one worker."""

import math
import threading
import time

import pytest

from tfps_plugin.cluster.calls.worker_calls import InFlightCall
from tfps_plugin.cluster.calls.worker_calls import WorkerCalls

_SECONDS = 30.0


class _Runner:
    """Takes a turn on its own thread, until it is told to end it."""

    def __init__(self, calls: WorkerCalls, *, exclusive: bool = False) -> None:
        self.has_begun = threading.Event()
        self._may_end = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(calls, exclusive)
        )
        self._thread.start()

    def _run(self, calls: WorkerCalls, exclusive: bool) -> None:
        with calls.turn(exclusive=exclusive):
            self.has_begun.set()
            assert self._may_end.wait(_SECONDS)

    @property
    def thread_id(self) -> int:
        assert self._thread.ident is not None
        return self._thread.ident

    def end(self) -> None:
        self._may_end.set()
        self._thread.join(_SECONDS)
        assert not self._thread.is_alive()


def _wait_until_one_waits(calls: WorkerCalls) -> None:
    done = threading.Event()
    for _ in range(3000):
        with calls._changed:
            if calls._num_waiting_exclusive:
                return
        done.wait(0.01)
    raise AssertionError("nobody waits to be alone")


def test_nobody_waits_for_a_thread_that_is_given_up() -> None:
    calls = WorkerCalls(wait_seconds=_SECONDS)
    hanging = [_Runner(calls), _Runner(calls)]
    assert all(each.has_begun.wait(_SECONDS) for each in hanging)
    alone = _Runner(calls, exclusive=True)
    _wait_until_one_waits(calls)
    for each in hanging:
        assert not alone.has_begun.is_set()
        calls.give_up(each.thread_id)
    assert alone.has_begun.wait(_SECONDS)
    # Its late end does not count as the end of another call.
    hanging[0].end()
    behind = _Runner(calls)
    assert not behind.has_begun.is_set()
    alone.end()
    assert behind.has_begun.wait(_SECONDS)
    for each in (hanging[1], behind):
        each.end()


def test_many_run_beside_one_another() -> None:
    calls = WorkerCalls()
    runners = [_Runner(calls) for _ in range(3)]
    assert all(runner.has_begun.wait(_SECONDS) for runner in runners)
    for runner in runners:
        runner.end()


def test_one_alone_waits_for_all_and_comes_before_those_behind() -> None:
    calls = WorkerCalls()
    first = _Runner(calls)
    assert first.has_begun.wait(_SECONDS)
    alone = _Runner(calls, exclusive=True)
    _wait_until_one_waits(calls)
    behind = _Runner(calls)
    assert not alone.has_begun.is_set()
    first.end()
    assert alone.has_begun.wait(_SECONDS)
    assert not behind.has_begun.is_set()
    alone.end()
    assert behind.has_begun.wait(_SECONDS)
    behind.end()


def test_nobody_waits_for_ever() -> None:
    calls = WorkerCalls(wait_seconds=0.01)
    first = _Runner(calls)
    assert first.has_begun.wait(_SECONDS)
    alone = _Runner(calls, exclusive=True)
    assert alone.has_begun.wait(_SECONDS)
    beside = _Runner(calls)
    assert beside.has_begun.wait(_SECONDS)
    for runner in (first, alone, beside):
        runner.end()


def test_a_turn_ends_with_an_error() -> None:
    calls = WorkerCalls(wait_seconds=0.01)
    try:
        with calls.turn(exclusive=True):
            raise ValueError
    except ValueError:
        pass
    assert not calls._running


def _step() -> None:
    pass


def test_only_a_call_that_succeeds_prepares_its_function() -> None:
    calls = WorkerCalls()
    asked: list[bool] = []
    turn = calls.turn
    calls.turn = lambda *, exclusive: (  # type: ignore[method-assign]
        asked.append(exclusive) or turn(exclusive=exclusive)  # type: ignore[func-returns-value]
    )
    with pytest.raises(ValueError, match="x"), calls.calling(_step, 1):
        raise ValueError("x")
    for cluster_state in (1, 1, 2):
        with calls.calling(_step, cluster_state):
            pass
    assert asked == [True, True, False, True]


def test_a_call_needs_its_ps_only_while_it_is_in_flight() -> None:
    call = InFlightCall()
    assert not call.needs([0, 1], math.inf)
    with call.needing(frozenset({1, 2})):
        assert call.is_under_way
        assert call.needs([0, 1], math.inf)
        assert not call.needs([0], math.inf)
    assert not call.needs([0, 1], math.inf)
    with pytest.raises(ValueError, match="x"), call.needing({0}):
        raise ValueError("x")
    assert not call.needs([0], math.inf)
    assert not call.is_under_way


def test_only_calls_that_began_before_count() -> None:
    call = InFlightCall()
    before = time.monotonic()
    with call.needing({0}):
        assert not call.needs([0], before)
        assert call.needs([0], time.monotonic() + 1)
