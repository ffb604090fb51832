"""Tests of workers that sit out synchronous steps."""

import pytest

from tfps_plugin.training.synchronous.exclusions import Exclusions


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def exclusions(clock: _Clock) -> Exclusions:
    return Exclusions(clock)


def test_all_take_part_at_first(exclusions: Exclusions) -> None:
    assert exclusions.members([0, 2, 3]) == [0, 2, 3]


def test_a_worker_sits_out_ten_times_as_long_as_it_held_up_others(
    exclusions: Exclusions, clock: _Clock
) -> None:
    assert exclusions.exclude([2], 30.0) == 300.0
    assert exclusions.members([0, 2, 3]) == [0, 3]
    clock.now += 299.0
    assert exclusions.members([0, 2, 3]) == [0, 3]
    clock.now += 1.0
    assert exclusions.members([0, 2, 3]) == [0, 2, 3]


def test_a_worker_that_fails_at_once_does_not_sit_out(
    exclusions: Exclusions,
) -> None:
    assert exclusions.exclude([0], 4.9) == 0.0
    assert exclusions.members([0, 1]) == [0, 1]


@pytest.mark.parametrize(("held_up", "seconds"), [(5.0, 50.0), (1e4, 600.0)])
def test_the_time_has_limits(
    exclusions: Exclusions, clock: _Clock, held_up: float, seconds: float
) -> None:
    assert exclusions.exclude([0], held_up) == seconds
    clock.now += seconds - 0.5
    assert exclusions.members([0, 1]) == [1]
    clock.now += 0.5
    assert exclusions.members([0, 1]) == [0, 1]


def test_somebody_takes_part(exclusions: Exclusions) -> None:
    exclusions.exclude([0, 1], 5.0)
    assert exclusions.members([0, 1]) == [0, 1]
    assert exclusions.members([0, 1, 2]) == [2]
    # Also one that sits out, if no other one is present.
    assert exclusions.members([1]) == [1]
