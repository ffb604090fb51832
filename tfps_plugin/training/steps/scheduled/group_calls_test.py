"""Tests of calls that all workers make together, without a cluster."""

import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.training.steps.scheduled import group_calls
from tfps_plugin.training.steps.scheduled.group_calls import WorkerGroupCalls

_SECONDS = 20.0


class _Listener:
    def __init__(self) -> None:
        self.outcomes: list[tuple[ClosureState, Any]] = []

    def set_outcome(
        self, state: ClosureState, outcome: Any, worker_index: int | None
    ) -> None:
        assert worker_index is None
        self.outcomes.append((state, outcome))

    @property
    def state(self) -> ClosureState:
        ((state, _),) = self.outcomes
        return state


def _together(num_backup: int = 0) -> Any:
    step = types.SimpleNamespace(num_backup=num_backup)
    return types.SimpleNamespace(step=step)


_TOGETHER = _together()


class _Call(str):
    """The name of a call; its first letter stands for its arguments."""

    def has_arguments_of(self, other: str) -> bool:
        return self[0] == other[0]


class _Coordinator:
    """Counts rounds, as a coordinator does."""

    def __init__(self) -> None:
        self.round = 0
        self.errors: list[BaseException] = []

    def end_round(self, error: BaseException) -> None:
        self.round += 1
        self.errors.append(error)


class _Calls(WorkerGroupCalls):
    """Calls whose spans are scripted.

    Attributes:
        spans: The names of the calls of each span.
        outcomes: For each span: the number of calls that it makes, or an error.
        begun: Set when a span has begun.
        may_end: A span waits for it.
    """

    def __init__(self, coordinator: Any) -> None:
        super().__init__(coordinator)
        self.coordinator = coordinator
        self.spans: list[list[str]] = []
        self.outcomes: list[int | BaseException] = []
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def add(self, *names: str, together: Any = _TOGETHER) -> list[_Listener]:
        listeners = []
        for name in names:
            listener = _Listener()
            self._add(_Call(name), together, listener, self.coordinator)
            listeners.append(listener)
        return listeners

    def _make(self, coordinator: Any, calls: Any) -> Any:
        self.spans.append([each.call for each in calls])
        self.begun.set()
        assert self.may_end.wait(_SECONDS)
        outcome = self.outcomes.pop(0) if self.outcomes else len(calls)
        if isinstance(outcome, BaseException):
            raise outcome
        for each in calls[:outcome]:
            each.results = {1: each.call, 0: "first"}
            each.done()
        return calls[outcome:]


@pytest.fixture
def calls() -> Iterator[_Calls]:
    calls = _Calls(_Coordinator())
    yield calls
    calls.may_end.set()
    assert calls.wait_until_idle(_SECONDS)


def _hold(calls: _Calls, *names: str) -> list[_Listener]:
    """Adds calls, of which the first one's span begins and waits."""
    calls.may_end.clear()
    first = calls.add(names[0])
    assert calls.begun.wait(_SECONDS)
    return first + calls.add(*names[1:])


def test_calls_that_wait_are_made_at_a_time(calls: _Calls) -> None:
    assert calls.is_idle
    listeners = _hold(calls, "a", "b", "c")
    assert not calls.is_idle
    assert not calls.wait_until_idle(0.0)
    calls.may_end.set()
    assert calls.wait_until_idle(_SECONDS)
    assert calls.spans == [["a"], ["b", "c"]]
    for name, listener in zip("abc", listeners, strict=True):
        ((state, outcome),) = listener.outcomes
        assert state is ClosureState.DONE
        # In the order of the workers.
        assert outcome.values == ("first", name)
    calls.add("d")
    assert calls.wait_until_idle(None)
    assert calls.spans[2:] == [["d"]]


def test_steps_of_different_functions_keep_their_order(calls: _Calls) -> None:
    _hold(calls, "a")
    one, other = _together(), _together()
    for name, together in zip("bcde", (one, one, other, one), strict=True):
        calls.add(name, together=together)
    calls.may_end.set()
    assert calls.wait_until_idle(_SECONDS)
    assert calls.spans == [["a"], ["b", "c"], ["d"], ["e"]]


@pytest.mark.parametrize("num_backup", [0, 1])
def test_with_backup_workers_calls_of_a_span_have_the_same_arguments(
    calls: _Calls, num_backup: int
) -> None:
    _hold(calls, "a")
    names = ["b1", "b2", "c1", "c2", "b3"]
    calls.add(*names, together=_together(num_backup))
    calls.may_end.set()
    assert calls.wait_until_idle(_SECONDS)
    assert calls.spans[1:] == (
        [["b1", "b2"], ["c1", "c2"], ["b3"]] if num_backup else [names]
    )


def test_calls_that_were_not_made_are_made_again(calls: _Calls) -> None:
    calls.outcomes = [1, 0, 2]
    listeners = _hold(calls, "a", "b", "c", "d")
    calls.may_end.set()
    assert calls.wait_until_idle(_SECONDS)
    assert calls.spans == [
        ["a"],
        ["b", "c", "d"],
        ["b", "c", "d"],
        ["d"],
    ]
    assert all(each.state is ClosureState.DONE for each in listeners)


def test_an_error_of_a_span_cancels_what_waits(calls: _Calls) -> None:
    error = ZeroDivisionError()
    calls.outcomes = [error]
    listeners = _hold(calls, "a", "b")
    calls.may_end.set()
    assert calls.wait_until_idle(_SECONDS)
    assert calls.coordinator.errors == [error]
    assert all(each.state is ClosureState.CANCELLED for each in listeners)
    (later,) = calls.add("c")
    assert calls.wait_until_idle(_SECONDS)
    assert later.state is ClosureState.DONE


def test_an_error_of_a_worker_cancels_only_earlier_calls(calls: _Calls) -> None:
    """A caller may have raised it, and go on, before the span has ended."""
    calls.outcomes = [0]
    earlier = _hold(calls, "a", "b")
    calls.coordinator.round += 1
    (later,) = calls.add("c")
    calls.may_end.set()
    assert calls.wait_until_idle(_SECONDS)
    assert all(each.state is ClosureState.CANCELLED for each in earlier)
    assert later.state is ClosureState.DONE
    assert calls.spans == [["a"], ["c"]]


def test_it_gives_up_after_spans_without_a_step(calls: _Calls) -> None:
    calls.outcomes = [0] * 20
    (listener,) = calls.add("a")
    assert calls.wait_until_idle(_SECONDS)
    assert listener.state is ClosureState.CANCELLED
    assert len(calls.spans) == group_calls._MOST_FAILED
    (error,) = calls.coordinator.errors
    assert isinstance(error, errors.WorkerLostError)


def test_stopping_cancels_what_waits_and_refuses_more(calls: _Calls) -> None:
    first, *waiting = _hold(calls, "a", "b", "c")
    assert calls.cancel_waiting() == 2
    calls.stop()
    assert all(each.state is ClosureState.CANCELLED for each in waiting)
    with pytest.raises(errors.ClosureCancelledError, match="closed"):
        calls.add("d")
    calls.may_end.set()
    assert calls.wait_until_idle(_SECONDS)
    assert first.state is ClosureState.DONE


def test_callers_wait_while_many_calls_wait(
    calls: _Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_calls, "_CAPACITY", 2)
    _hold(calls, "a", "b", "c")
    added = threading.Event()

    def add() -> None:
        calls.add("d")
        added.set()

    caller = threading.Thread(target=add)
    caller.start()
    assert not added.is_set()
    calls.may_end.set()
    assert added.wait(_SECONDS)
    caller.join(_SECONDS)
    assert calls.wait_until_idle(_SECONDS)
    assert [name for span in calls.spans for name in span] == [*"abcd"]
