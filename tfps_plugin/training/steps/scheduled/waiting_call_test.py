"""Tests of calls that wait until all workers have run them."""

import types
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.training.steps.scheduled.waiting_call import WaitingCall


class _Listener:
    outcome: Any = None

    def set_outcome(self, *outcome: Any) -> None:
        assert self.outcome is None
        self.outcome = outcome


class _Call:
    def __init__(self, argument: str) -> None:
        self._argument = argument

    def has_arguments_of(self, other: "_Call") -> bool:
        return self._argument == other._argument


def _together(num_backup: int) -> Any:
    step = types.SimpleNamespace(num_backup=num_backup)
    return types.SimpleNamespace(step=step)


def test_results_are_in_the_order_of_workers() -> None:
    listener = _Listener()
    call = WaitingCall(_Call("a"), _together(1), listener, 0)
    call.results = {2: {"loss": "c"}, 0: {"loss": "a"}}
    call.done()
    state, outcome, _ = listener.outcome
    assert state is ClosureState.DONE
    assert outcome["loss"].values == ("a", "c")
    assert call.has_ended


def test_a_step_whose_results_are_lost_has_failed() -> None:
    listener = _Listener()
    WaitingCall(_Call("a"), _together(0), listener, 0).done()
    state, outcome, _ = listener.outcome
    assert state is ClosureState.FAILED
    assert isinstance(outcome, errors.WorkerLostError)


@pytest.mark.parametrize("num_backup", [0, 1])
def test_a_late_worker_needs_calls_with_the_same_arguments(
    num_backup: int,
) -> None:
    together = _together(num_backup)
    first, same, other = (
        WaitingCall(_Call(argument), together, _Listener(), 0)
        for argument in "aab"
    )
    assert same.may_follow(first)
    assert other.may_follow(first) == (not num_backup)
    of_another_step = WaitingCall(
        _Call("a"), _together(num_backup), _Listener(), 0
    )
    assert not of_another_step.may_follow(first)
