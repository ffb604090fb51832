"""Tests of the speed that the latest calls of a worker give."""

import pytest

from tfps_plugin.coordinator.stragglers.windows import Observation
from tfps_plugin.coordinator.stragglers.windows import Window

_STEPS = 10


def _window(
    *seconds: float, lanes: int = 1, waits: float | None = 0.0
) -> Window:
    """Returns a window of such calls of each lane, and of a first one."""
    window = Window(0)
    for each in (1000.0, *seconds):
        for lane in range(lanes):
            window.add(lane, Observation(_STEPS, each, waits))
    return window


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("seconds", [0.01, 0.3, 2.0, 5.0])
def test_calls_of_any_length_say_enough(lanes: int, seconds: float) -> None:
    window = _window(*[seconds] * int(20.0 / seconds + 6), lanes=lanes)
    assert window.is_enough
    speed = window.speed()
    assert speed.steps_per_second == pytest.approx(lanes * _STEPS / seconds)
    assert speed.median_seconds == pytest.approx(seconds / _STEPS)
    assert speed.most_seconds == pytest.approx(seconds / _STEPS)


@pytest.mark.parametrize(
    ("seconds", "idea"),
    [([], False), ([0.1] * 15, False), ([2.0] * 7, True), ([9.0] * 5, True)],
)
def test_few_calls_or_seconds_say_little(
    seconds: list[float], *, idea: bool
) -> None:
    window = _window(*seconds)
    assert window.gives_an_idea is idea
    assert not window.is_enough


def test_time_counts_by_lane() -> None:
    assert _window(*[2.0] * 8).is_enough
    assert not _window(*[2.0] * 4, lanes=2).is_enough


def test_a_hiccup_makes_few_spans_long() -> None:
    usual = 0.05
    window = _window(*[usual] * 400, *[10 * usual] * 6, *[usual] * 10)
    speed = window.speed()
    assert speed.median_seconds == pytest.approx(usual / _STEPS)
    assert speed.seconds_per_step > 1.05 * usual / _STEPS


def test_three_in_four_calls_take_as_long() -> None:
    window = _window(*[2.0, 8.0, 8.0, 8.0] * 4)
    assert window.speed().most_seconds == pytest.approx(0.2)
    window = _window(*[2.0, 8.0, 8.0, 8.0, 8.0] * 3)
    assert window.speed().most_seconds == pytest.approx(0.8)


def test_lanes_that_are_not_used_any_more_do_not_count() -> None:
    window = _window(*[2.0] * 16, lanes=4)
    assert window.speed().steps_per_second == pytest.approx(20.0)
    for _ in range(20):
        window.add(0, Observation(_STEPS, 2.0))
    assert window.speed().steps_per_second == pytest.approx(5.0)


def test_calls_without_steps_are_no_first_calls() -> None:
    window = Window(0)
    window.add(0, Observation(0, 1.0))
    window.add(0, Observation(_STEPS, 100.0))
    assert not window.has_calls
    window.add(0, Observation(_STEPS, 1.0))
    assert window.speed(of_all_calls=True).seconds_per_step == pytest.approx(
        0.1
    )


@pytest.mark.parametrize(("waits", "share"), [(-3600.0, 0), (3600.0, 1)])
def test_a_clock_that_is_set_makes_no_impossible_waits(
    waits: float, share: float
) -> None:
    speed = _window(*[2.0] * 8, waits=waits).speed()
    assert speed.input_seconds == pytest.approx(share * speed.seconds_per_step)


def test_waits_are_unknown_if_those_of_one_call_are() -> None:
    window = _window(*[2.0] * 8)
    window.add(0, Observation(_STEPS, 2.0))
    speed = window.speed()
    assert speed.input_seconds is None
    assert speed.median_input_seconds is None
    assert speed.most_input_seconds is None
