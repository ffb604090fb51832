"""Tests of calls with a deadline."""

import threading

import pytest

from tfps_plugin.cluster.calls import bounded_calls


def test_returns_what_each_call_returned_or_raised() -> None:
    outcomes = bounded_calls.call_all(lambda number: 6 // number, [0, 1, 2], 10)
    assert list(outcomes) == [0, 1, 2]
    assert isinstance(outcomes[0].error, ZeroDivisionError)
    assert [outcomes[1].value, outcomes[2].value] == [6, 3]


def test_calls_run_at_the_same_time() -> None:
    barrier = threading.Barrier(8, timeout=10)
    outcomes = bounded_calls.call_all(lambda _: barrier.wait(), range(8), 20)
    assert all(outcome.error is None for outcome in outcomes.values())


def test_more_calls_than_threads() -> None:
    outcomes = bounded_calls.call_all(lambda number: number, range(500), 20)
    assert [outcome.value for outcome in outcomes.values()] == list(range(500))


def test_nothing_to_call() -> None:
    assert bounded_calls.call_all(lambda _: None, [], 0) == {}


def test_a_call_that_hangs_is_left_behind() -> None:
    gate = threading.Event()

    def hang(item: str) -> None:
        if item == "hangs":
            gate.wait(10)

    outcomes = bounded_calls.call_all(hang, ["hangs", "ends"], 0.2)
    gate.set()
    assert isinstance(outcomes["hangs"].error, TimeoutError)
    assert outcomes["ends"].error is None


def test_one_call() -> None:
    assert bounded_calls.call(lambda: 7, 10) == 7
    with pytest.raises(ZeroDivisionError):
        bounded_calls.call(lambda: 1 // 0, 10)
    gate = threading.Event()
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        bounded_calls.call(lambda: gate.wait(10), 0.05)
    gate.set()


def test_without_new_threads_it_calls_on_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    outcomes = bounded_calls.call_all(str, [1, 2], 10)
    assert [outcome.value for outcome in outcomes.values()] == ["1", "2"]


def test_a_call_that_was_given_up_keeps_its_turn() -> None:
    calls = bounded_calls.SerialCalls()
    gate, done = threading.Event(), threading.Event()
    with pytest.raises(TimeoutError, match="did not end"):
        calls.call(lambda: gate.wait(10), 0.05, wait_seconds=10)
    with pytest.raises(TimeoutError, match="an earlier one, begun 0 s ago"):
        calls.call(done.set, 10, wait_seconds=0.05)
    with pytest.raises(TimeoutError, match="an earlier one"):
        calls.wait(0.05)
    assert not done.is_set()
    gate.set()
    calls.call(done.set, 10, wait_seconds=10)
    assert done.is_set()


def test_a_call_that_raises_ends_its_turn() -> None:
    calls = bounded_calls.SerialCalls()
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 // 0, 10, wait_seconds=0)
    calls.wait(0)


def test_a_call_that_never_began_ends_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(function: object, timeout_seconds: float) -> None:
        raise TimeoutError("not even begun")

    calls = bounded_calls.SerialCalls()
    monkeypatch.setattr(bounded_calls, "call", never)
    with pytest.raises(TimeoutError, match="not even begun"):
        calls.call(lambda: None, 10, wait_seconds=0)
    calls.wait(0)
