"""Tests that calls are large enough to be cheap, and small enough to share."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.training.steps.tuning import packing
from tfps_plugin.training.steps.tuning.packing import Pace


@given(st.integers(0, 10_000), st.integers(1, 100), st.integers(1, 100))
def test_every_lane_gets_work_in_every_epoch(
    num_steps: int, num_lanes: int, most: int
) -> None:
    chosen = packing.choose_steps_per_closure(num_steps, num_lanes, most)
    assert 1 <= chosen <= most
    assert chosen == 1 or chosen * num_lanes * 4 <= num_steps


def test_calls_of_many_steps_make_whole_rounds() -> None:
    numbers = [packing.choose_steps_per_closure(16 * n, 4) for n in range(200)]
    assert numbers[:16] == [1, *range(1, 11), *[10] * 5]
    numbers = [
        packing.choose_steps_per_closure(16 * n, 4, most=100)
        for n in range(200)
    ]
    assert numbers[:16] == [1, *range(1, 16)]
    assert numbers[16:24] == [16, 16, 16, 16, 20, 20, 20, 20]
    assert numbers[-1] == 100


def test_a_short_epoch_bounds_what_was_measured() -> None:
    assert packing.choose_steps_per_closure(1600, 4, most=48) == 48
    assert packing.choose_steps_per_closure(160, 4, most=48) == 10
    assert packing.choose_steps_per_closure(1600, 4, most=2) == 2


@given(st.integers(0, 500), st.integers(1, 20), st.integers(1, 100))
def test_lanes_end_an_epoch_together(
    num_steps: int, num_lanes: int, most: int
) -> None:
    left = num_steps
    busy = [0] * num_lanes
    while left:
        lane = busy.index(min(busy))
        num = min(left, packing.steps_near_the_end(left, num_lanes, most))
        assert 1 <= num <= most
        busy[lane] += num
        left -= num
    assert max(busy) - min(busy) <= max(1, most // 4)


def test_slow_workers_make_fewer_steps_in_a_call() -> None:
    fewer = packing.steps_of_a_slow_worker
    made = [fewer(20, part) for part in (1.0, 0.7, 0.5, 0.01)]
    assert made == [20, 20, 10, 1]


def test_calls_are_whole_before_the_end() -> None:
    assert packing.steps_near_the_end(200, 4, most=20) == 20
    assert packing.steps_near_the_end(80, 4, most=20) == 10
    assert packing.steps_near_the_end(1, 4, most=20) == 5


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1e-6, 100),
        (0.01, 100),
        (0.0101, 48),
        (0.08, 10),
        (0.12, 5),
        (0.6, 1),
        (3600.0, 1),
    ],
)
def test_calls_are_long_but_not_too_long(seconds: float, expected: int) -> None:
    assert packing.most_steps(seconds) == expected


@pytest.mark.parametrize(
    ("num_lanes", "expected"), [(1, 1.0), (4, 1.0), (8, 2.0), (200, 4.0)]
)
def test_calls_of_many_lanes_are_longer(
    num_lanes: int, expected: float
) -> None:
    assert packing.seconds_of_a_call(num_lanes) == expected
    pace = Pace(num_lanes)
    for _ in range(3 * num_lanes):
        pace.observe(10, 2.0)
    assert pace.most_steps == packing.most_steps(0.2, expected)


def test_the_first_calls_choose_for_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tfps_plugin")
    pace = Pace(num_lanes=2, name="wide")
    for _ in range(2):
        pace.observe(10, 60.0)  # they trace
    pace.observe(0, 5.0)  # there was no input
    for seconds in (0.02, 0.03, 60.0):
        assert pace.most_steps == packing.MOST_STEPS_AT_FIRST
        pace.observe(10, seconds)
    assert not caplog.records
    pace.observe(10, 0.04)
    assert pace.most_steps == 100
    for _ in range(20):
        pace.observe(1, 60.0)
        pace.observe(100, 1.0)
    assert pace.most_steps == 100
    assert "A step of wide takes 3.5 ms: 100 of them" in caplog.text
    assert len(caplog.records) == 1


def test_more_steps_are_packed_once_they_turn_out_to_be_shorter() -> None:
    pace = Pace(num_lanes=1)
    for _ in range(3):
        pace.observe(10, 3.0)
    assert pace.most_steps == 2
    # A call of fewer steps proves nothing, nor does a quick one.
    for call in [(2, 0.8), (1, 0.01), (2, 0.02), (2, 0.8), (2, 0.8)]:
        pace.observe(*call)
        assert pace.most_steps == 2
    # All of the latest four count.
    pace.observe(2, 0.4)
    assert pace.most_steps == 2
    pace.observe(2, 0.4)
    assert pace.most_steps == 2
    pace.observe(2, 0.2)
    assert pace.most_steps == 5
    for _ in range(4):
        assert pace.most_steps == 5
        pace.observe(5, 0.25)
    assert pace.most_steps == 20
    # Measurements of other calls no longer count.
    for _ in range(3):
        pace.observe(20, 0.1)
        assert pace.most_steps == 20
    pace.observe(20, 0.1)
    assert pace.most_steps == 100


def test_what_takes_much_longer_is_measured_again() -> None:
    pace = Pace(num_lanes=1)
    for _ in range(3):
        pace.observe(10, 0.01)
    assert pace.most_steps == 100
    pace.observe(100, 50.0)
    assert pace.most_steps == 10
    for _ in range(2):
        pace.observe(10, 10.0)
    assert pace.most_steps == 1


def test_calls_of_a_new_function_are_passed_over() -> None:
    pace = Pace(num_lanes=2)
    for _ in range(6):
        pace.observe(10, 0.1)
    assert (pace.is_known, pace.most_steps) == (True, 100)
    pace.pass_over_first_calls(num_lanes=2)
    for _ in range(4):
        # Each lane's last call of the old function, and its first of the new.
        pace.observe(100, 30.0)
    assert (pace.is_known, pace.most_steps) == (True, 100)
    pace.observe(100, 30.0)
    assert not pace.is_known
    assert pace.steps_so_far == 560
