"""Tests of the ledger of closures."""

import random

import pytest

from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.coordinator.closures.closure_ledger import ClosureLedger
from tfps_plugin.coordinator.closures.closure_ledger import Ended


def _closure(bound_to: int | None = None) -> Closure:
    return Closure(lambda: None, bound_to=bound_to)


def _taken(ledger: ClosureLedger, worker_index: int = 0) -> Closure:
    closure = ledger.take(worker_index)
    assert closure is not None
    return closure


def test_first_in_first_out() -> None:
    ledger = ClosureLedger(capacity=10)
    closures = [_closure() for _ in range(3)]
    for closure in closures:
        ledger.put(closure)
    assert [ledger.take(0) for _ in range(4)] == [*closures, None]


def test_needs_room() -> None:
    ledger = ClosureLedger(capacity=1)
    ledger.put(_closure())
    assert not ledger.has_room


def test_put_back_goes_first_even_without_room() -> None:
    ledger = ClosureLedger(capacity=1)
    first, second = _closure(), _closure()
    ledger.put(first)
    assert ledger.take(0) is first
    ledger.put(second)
    assert ledger.put_back(first, 1) == []
    assert (ledger.num_queued, ledger.num_running) == (2, 0)
    assert ledger.take(0) is first
    assert first.num_attempts == 2


def test_done() -> None:
    ledger = ClosureLedger(capacity=1)
    closure = _closure()
    ledger.put(closure)
    ledger.take(0)
    assert not ledger.is_idle
    assert ledger.done(closure, 1, 7) == [(closure, 7)]
    assert closure.state is ClosureState.DONE
    assert ledger.is_idle
    assert not ledger.has_error


def test_failure_cancels_what_waits_and_what_runs() -> None:
    ledger = ClosureLedger(capacity=10)
    for _ in range(5):
        ledger.put(_closure())
    failing, ending, lost, failing_later = (_taken(ledger) for _ in range(4))
    error = RuntimeError("first")

    ended = ledger.failed(failing, 1, error)
    assert [closure.state for closure, _ in ended] == [
        ClosureState.FAILED,
        ClosureState.CANCELLED,
    ]
    assert ledger.take(0) is None
    assert ledger.take_error() is None, "closures still run"

    assert ledger.done(ending, 1, 7) == [(ending, None)]
    assert ledger.put_back(lost, 1) == [(lost, None)]
    assert ledger.failed(failing_later, 1, RuntimeError("second"))
    for closure in (ending, lost, failing_later):
        assert closure.state is ClosureState.CANCELLED

    assert ledger.take_error() is error
    assert ledger.take_error() is None
    assert not ledger.has_error


def test_usable_after_an_error() -> None:
    ledger = ClosureLedger(capacity=10)
    ledger.put(_closure())
    ledger.failed(_taken(ledger), 1, RuntimeError())
    ledger.take_error()
    ledger.put(_closure())
    closure = _taken(ledger)
    ledger.done(closure, 1, 1)
    assert closure.state is ClosureState.DONE


def test_an_error_may_be_taken_while_closures_of_its_round_run() -> None:
    ledger = ClosureLedger(capacity=10)
    for _ in range(2):
        ledger.put(_closure())
    failing, running = _taken(ledger), _taken(ledger)
    error = RuntimeError()
    ledger.failed(failing, 1, error)
    assert ledger.take_error(at_once=True) is error
    ledger.put(_closure())
    ledger.done(running, 1, 1)
    assert running.state is ClosureState.CANCELLED
    of_the_next_round = _taken(ledger)
    ledger.done(of_the_next_round, 1, 1)
    assert of_the_next_round.state is ClosureState.DONE


def test_error_from_outside_ends_the_round() -> None:
    ledger = ClosureLedger(capacity=10)
    for _ in range(2):
        ledger.put(_closure())
    running = _taken(ledger)
    error = RuntimeError("no worker left")
    assert len(ledger.end_round(error)) == 1
    ledger.done(running, 1, 1)
    assert ledger.take_error() is error


def test_cancel_queued_lets_the_rest_count() -> None:
    ledger = ClosureLedger(capacity=10)
    for _ in range(3):
        ledger.put(_closure())
    running = _taken(ledger)
    assert len(ledger.cancel_queued()) == 2
    ledger.done(running, 1, 1)
    assert running.state is ClosureState.DONE
    assert ledger.take_error() is None


def test_a_bound_closure_is_taken_first_and_by_its_worker_alone() -> None:
    ledger = ClosureLedger(capacity=10)
    unbound, first, second = _closure(), _closure(1), _closure(1)
    for closure in (unbound, first, second):
        ledger.put(closure)
    assert list(ledger.bound_workers) == [1]
    assert [ledger.take(1) for _ in range(2)] == [first, second]
    assert not ledger.bound_workers
    ledger.put(_closure(1))
    assert [ledger.take(0) for _ in range(2)] == [unbound, None]


def test_bound_closures_count_like_others() -> None:
    ledger = ClosureLedger(capacity=2)
    ledger.put(_closure(1))
    assert ledger.has_room
    assert not ledger.is_idle
    ledger.put(_closure())
    assert not ledger.has_room
    assert (ledger.num_queued, ledger.num_unbound) == (2, 1)
    bound = _taken(ledger, 1)
    assert (ledger.num_queued, ledger.num_running) == (1, 1)
    assert ledger.done(bound, 1, 7) == [(bound, 7)]
    _taken(ledger)
    assert ledger.num_queued == 0


@pytest.mark.parametrize(
    "why", [{}, {"is_transient": True}, {"worker_is_lost": True}]
)
def test_a_bound_closure_is_cancelled_instead_of_put_back(
    why: dict[str, bool],
) -> None:
    # Neither does it count as the cause of its worker's loss.
    ledger = ClosureLedger(capacity=1, max_workers_lost=1)
    closure = _closure(1)
    ledger.put(closure)
    assert ledger.take(1) is closure
    assert ledger.put_back(closure, 1, **why) == [(closure, None)]
    assert closure.state is ClosureState.CANCELLED
    assert ledger.is_idle
    assert not ledger.has_error
    # Late reports of its lane change nothing.
    assert ledger.done(closure, 1, 7) == []
    assert ledger.put_back(closure, 1) == []


def test_the_error_of_a_bound_closure_ends_the_round() -> None:
    ledger = ClosureLedger(capacity=10)
    for bound_to in (0, 1, 1, None):
        ledger.put(_closure(bound_to))
    error = RuntimeError("step")
    ended = ledger.failed(_taken(ledger, 1), 1, error)
    assert [closure.state for closure, _ in ended] == [
        ClosureState.FAILED,
        *[ClosureState.CANCELLED] * 3,
    ]
    assert ledger.is_idle
    assert ledger.take_error() is error


def test_cancel_bound_leaves_what_others_may_run() -> None:
    ledger = ClosureLedger(capacity=10)
    for bound_to in (0, 1, None, 1):
        ledger.put(_closure(bound_to))
    ended = ledger.cancel_bound(1)
    assert [closure.bound_to for closure, _ in ended] == [1, 1]
    assert ledger.cancel_bound(1) == []
    assert ledger.num_queued == 2
    assert len(ledger.cancel_queued()) == 2
    assert ledger.is_idle


@pytest.mark.parametrize("seed", range(20))
def test_every_closure_ends_once_whatever_happens(seed: int) -> None:
    choose = random.Random(seed)
    ledger = ClosureLedger(capacity=5)
    closures: list[Closure] = []
    running: list[Closure] = []
    ended: list[Ended] = []
    num_failures = 0
    for _ in range(500):
        action = choose.choice(
            ["put", "take", "done", "back", "fail", "err", "lose"]
        )
        if action == "put" and ledger.has_room and not ledger.has_error:
            closures.append(_closure(choose.choice([None, None, 0, 1])))
            ledger.put(closures[-1])
        elif action == "take":
            worker_index = choose.randrange(2)
            taken = ledger.take(worker_index)
            if taken is not None:
                assert taken.bound_to in (None, worker_index)
                running.append(taken)
        elif action == "lose" and choose.random() < 0.2:
            ended += ledger.cancel_bound(choose.randrange(2))
        elif action in ("done", "back", "fail") and running:
            closure = running.pop(choose.randrange(len(running)))
            if action == "done":
                ended += ledger.done(closure, closure.num_attempts, None)
            elif action == "back":
                ended += ledger.put_back(closure, closure.num_attempts)
            elif choose.random() < 0.2:
                ended += ledger.failed(
                    closure, closure.num_attempts, RuntimeError()
                )
            else:
                running.append(closure)
        elif action == "err" and ledger.take_error() is not None:
            assert not running
            num_failures += 1
        assert ledger.num_running == len(running)
        num_queued = len(closures) - len(running) - len(ended)
        assert ledger.num_queued == num_queued
    for closure in running:
        ended += ledger.done(closure, closure.num_attempts, None)
    ended += ledger.cancel_queued()
    assert sorted(map(id, closures)) == sorted(id(each) for each, _ in ended)
    assert all(closure.state.is_final for closure in closures)
    assert all(
        closure.num_attempts <= 1
        for closure in closures
        if closure.bound_to is not None
    )
    assert ledger.is_idle
    assert num_failures > 0
