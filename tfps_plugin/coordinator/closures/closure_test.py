"""Tests of the life of a closure."""

import pytest

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.coordinator.testing import FakeListener

_ALLOWED = {
    (ClosureState.QUEUED, ClosureState.RUNNING),
    (ClosureState.QUEUED, ClosureState.CANCELLED),
    (ClosureState.RUNNING, ClosureState.QUEUED),
    (ClosureState.RUNNING, ClosureState.DONE),
    (ClosureState.RUNNING, ClosureState.FAILED),
    (ClosureState.RUNNING, ClosureState.CANCELLED),
}


@pytest.mark.parametrize("before", list(ClosureState))
@pytest.mark.parametrize("after", list(ClosureState))
def test_only_allowed_moves(before: ClosureState, after: ClosureState) -> None:
    closure = Closure(lambda: None)
    closure.state = before
    if (before, after) in _ALLOWED:
        closure.move_to(after)
        assert closure.state is after
    else:
        with pytest.raises(errors.InternalError, match=before.value):
            closure.move_to(after)


def test_final_states() -> None:
    assert [state for state in ClosureState if state.is_final] == [
        ClosureState.DONE,
        ClosureState.FAILED,
        ClosureState.CANCELLED,
    ]


def test_counts_attempts() -> None:
    closure = Closure(lambda: None)
    for _ in range(3):
        closure.move_to(ClosureState.RUNNING)
        closure.move_to(ClosureState.QUEUED)
    assert closure.num_attempts == 3


def test_tells_how_it_ended() -> None:
    listener = FakeListener()
    closure = Closure(lambda: None, listener)
    closure.move_to(ClosureState.RUNNING)
    closure.worker_index = 4
    closure.move_to(ClosureState.DONE)
    closure.tell("result")
    assert listener.told == [(ClosureState.DONE, "result", 4)]
