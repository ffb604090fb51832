"""The first call of a function on a worker is alone there."""

from typing import Any

import pytest

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.calls.turns import Turns
from tfps_plugin.coordinator.lanes import first_calls


class _NotingTurns(Turns):
    """Notes who asked to be alone."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bool] = []

    def turn(self, *, alone: bool) -> Any:
        self.asked.append(alone)
        return super().turn(alone=alone)


def _step(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number + 1


@pytest.fixture
def turns() -> _NotingTurns:
    return _NotingTurns()


def _on(turns: Turns | None, generation: int = 0, num_changes: int = 0) -> Any:
    return dispatch_context.dispatching(
        DispatchContext(0, 0, generation, "/device:CPU:0", turns, num_changes)
    )


def test_only_the_first_of_each_life_of_a_worker(turns: _NotingTurns) -> None:
    def step(number: int) -> int:
        return _step(number)

    for generation in (0, 1):
        with _on(turns, generation):
            # However often it is asked for.
            assert [first_calls.alone(step)(n) for n in (1, 2)] == [2, 3]
    other = _NotingTurns()
    with _on(other):
        first_calls.alone(step)(1)
    assert turns.asked == [True, False, True, False]
    assert other.asked == [True]


def test_the_first_after_each_change_of_the_cluster(
    turns: _NotingTurns,
) -> None:
    for num_changes in (0, 2, 2, 4):
        with _on(turns, num_changes=num_changes):
            first_calls.alone(_step)(1)
    assert turns.asked == [True, True, False, True]


def test_what_failed_may_not_be_prepared(turns: _NotingTurns) -> None:
    def step(number: int) -> int:
        return _step(number)

    call = first_calls.alone(step)
    with _on(turns):
        with pytest.raises(ValueError, match="-1"):
            call(-1)
        call(1)
    assert turns.asked == [True, True]


def test_the_chief_itself_waits_for_nobody() -> None:
    assert first_calls.alone(_step)(1) == 2
    with _on(None):
        assert first_calls.alone(_step)(1) == 2
