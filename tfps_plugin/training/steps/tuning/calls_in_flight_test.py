"""Tests of the search for the number of calls at a time."""

import logging
import random
from collections.abc import Callable

import pytest

from tfps_plugin.training.steps.tuning.calls_in_flight import CallsInFlight
from tfps_plugin.training.steps.tuning.loss_course import LossCourse

# Maps the number of calls of a worker to the seconds of a step of each.
_SecondsOfAStep = Callable[[int], float]


def _train(
    calls: CallsInFlight,
    seconds_of_a_step: _SecondsOfAStep,
    *,
    num_workers: int = 2,
    most_calls: int = 2000,
    loss: float | None = None,
) -> int:
    """Runs calls of 10 steps as workers would; returns the calls at a time.

    Every lane that may begins a call when its last one has ended. The time of
    a call depends on the number of calls that its worker runs when it begins.
    """
    # End of each call, by worker and number of the lane.
    running: dict[tuple[int, int], float] = {}
    now, num_ended = 0.0, 0
    while not calls.is_kept and num_ended < most_calls:
        for worker in range(num_workers):
            for number in range(calls.number):
                if (worker, number) not in running:
                    beside = sum(lane[0] == worker for lane in running)
                    running[worker, number] = now + 10 * seconds_of_a_step(
                        max(beside + 1, calls.number)
                    )
        lane = min(running, key=lambda lane: running[lane])
        now = running.pop(lane)
        num_ended += 1
        number = 4 * lane[0] + lane[1]
        calls.observe_loss(10, number, loss, now)
        calls.observe(10, number, now)
    return num_ended


def _waits_for(messages: float, computes: float) -> _SecondsOfAStep:
    """Simulates a worker that computes for one call at a time."""
    return lambda number: max(messages + computes, number * computes)


@pytest.mark.parametrize(
    ("seconds_of_a_step", "expected"),
    [
        (_waits_for(messages=0.01, computes=0.01), 2),
        (_waits_for(messages=0.03, computes=0.01), 4),
        (_waits_for(messages=0.02, computes=0.01), 3),
        (_waits_for(messages=1.0, computes=0.01), 4),
        (_waits_for(messages=0.0, computes=0.01), 2),
        # Each additional call slows down the others.
        (lambda number: 0.01 * number**1.5, 1),
        # Too small a difference to be sure.
        (lambda number: 0.01 * number**1.05, 2),
        (lambda number: 0.01 * number**0.9, 2),
    ],
)
@pytest.mark.parametrize("num_workers", [1, 2, 9])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_finds_what_is_fastest(
    seconds_of_a_step: _SecondsOfAStep,
    expected: int,
    num_workers: int,
    noise: float,
) -> None:
    source = random.Random(7)
    calls = CallsInFlight(num_workers, at_first=2, most=4)
    _train(
        calls,
        lambda number: (
            seconds_of_a_step(number) * (1 + noise * source.random())
        ),
        num_workers=num_workers,
    )
    assert calls.is_kept
    assert calls.number == expected


def test_tries_no_fewer_than_it_may() -> None:
    tried = set()

    def slower_beside_others(number: int) -> float:
        tried.add(number)
        return 0.01 * number**1.5

    calls = CallsInFlight(2, at_first=2, most=4, least=2)
    _train(calls, slower_beside_others)
    assert calls.is_kept
    assert calls.number == 2
    assert min(tried) == 2


def test_begins_with_what_is_good_for_most() -> None:
    calls = CallsInFlight(3, at_first=2, most=4)
    assert not calls.is_kept
    for now in range(5):
        assert calls.number == 2
        calls.observe(10, 0, now)


def test_says_what_it_has_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tfps_plugin")
    calls = CallsInFlight(2, at_first=2, most=4, name="wide")
    num_calls = _train(calls, _waits_for(messages=0.01, computes=0.01))
    assert len(caplog.records) == 1
    assert "Each worker runs 2 calls of wide at a time" in caplog.text
    assert "100 with 1, 200 with 2, 200 with 3" in caplog.text
    assert num_calls < 60
    assert not _train(calls, _waits_for(messages=1.0, computes=0.01))
    assert len(caplog.records) == 1


def test_calls_beside_another_number_do_not_count() -> None:
    calls = CallsInFlight(1, at_first=2, most=4)
    now = 0.0
    while calls.number == 2:
        now += 1
        calls.observe(10, 0, now)
    # These began before, each on its own lane.
    for lane in range(1, 100):
        calls.observe(10, lane, now + 0.01)
    assert calls.number == 3
    assert not calls.is_kept


def test_the_time_between_epochs_does_not_count() -> None:
    calls = CallsInFlight(1, at_first=1, most=2)
    now = 0.0
    for epoch in range(1000):
        now += 1 + 1000 * (epoch % 2)
        calls.went_idle()
        for _ in range(3):
            now += 1
            for lane in range(calls.number):
                calls.observe(10, lane, now)
    # Two calls are twice as fast, however long some epochs have waited.
    assert calls.is_kept
    assert calls.number == 2


def test_one_lucky_turn_is_not_enough() -> None:
    calls = CallsInFlight(1, at_first=2, most=4)
    turns: list[int] = []

    def seconds_of_a_step(number: int) -> float:
        if not turns or turns[-1] != number:
            turns.append(number)
        return 0.001 if turns == [2, 3] else 0.01 * number

    _train(calls, seconds_of_a_step, num_workers=1)
    assert calls.number == 2
    assert turns[:4] == [2, 3, 2, 3]


@pytest.mark.parametrize("chosen", [1, 2, 7])
def test_what_was_chosen_is_kept(chosen: int) -> None:
    calls = CallsInFlight(2, at_first=chosen, most=chosen)
    assert calls.is_kept
    assert calls.number == chosen
    for now in range(100):
        calls.observe(10, 0, now)
    assert calls.number == chosen


def test_a_call_of_no_time_is_no_measure() -> None:
    calls = CallsInFlight(1, at_first=2, most=4)
    for _ in range(100):
        calls.observe(10, 0, 1.0)
    assert calls.number == 2
    assert not calls.is_kept


def test_a_new_function_is_measured_from_its_second_call_on() -> None:
    calls = CallsInFlight(1, at_first=1, most=2)
    for now in range(1, 4):
        calls.observe(10, 0, float(now))
    calls.measure_again(3.5)
    # The call of the old function ends, then the first one of the new one.
    calls.observe(10, 0, 4.0)
    calls.observe(10, 0, 1000.0)
    for now in range(1001, 1005):
        assert calls.number == 1
        calls.observe(10, 0, float(now))
    assert calls.number == 2


@pytest.mark.parametrize(
    ("seconds_of_a_step", "expected"),
    [
        # Twice as fast, and half as fast again.
        (_waits_for(messages=0.03, computes=0.01), 4),
        (_waits_for(messages=0.01, computes=0.01), 2),
        # A fifth faster is too little for gradients of older weights.
        (_waits_for(messages=0.002, computes=0.01), 1),
        (lambda number: 0.01 * number, 1),
    ],
)
def test_of_training_more_have_to_be_clearly_worth_it(
    seconds_of_a_step: _SecondsOfAStep, expected: int
) -> None:
    calls = CallsInFlight(2, at_first=1, most=4, course=LossCourse())
    _train(calls, seconds_of_a_step, loss=0.5)
    assert calls.is_kept
    assert calls.number == expected


def test_while_the_loss_falls_fast_no_other_number_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tfps_plugin")
    calls = CallsInFlight(
        2, at_first=1, most=4, name="deep", course=LossCourse()
    )
    # The loss falls by a third as steps double.
    for call in range(1, 200):
        for lane in range(2):
            calls.observe_loss(10, lane, call**-0.5, call)
            calls.observe(10, lane, call)
        assert calls.number == 1
        assert not calls.is_kept
    assert not caplog.records

    calls.begin_epoch()
    for call in range(200, 900):
        for lane in range(2):
            calls.observe_loss(10, lane, 0.001, call)
            calls.observe(10, lane, call)
        if calls.number == 2:
            break
    assert calls.number == 2
    assert "the training loss of deep no longer falls fast" in caplog.text


@pytest.mark.parametrize("chosen", [1, 3])
def test_what_was_chosen_is_kept_whatever_the_loss_does(chosen: int) -> None:
    calls = CallsInFlight(2, at_first=chosen, most=chosen, course=LossCourse())
    for call in range(500):
        calls.observe_loss(10, 0, 1 / (1 + call), call)
        calls.observe(10, 0, call)
        assert calls.number == chosen
    assert calls.is_kept


class _Training:
    """Lanes of a worker that report the mean loss of each call."""

    def __init__(self, calls: CallsInFlight) -> None:
        self._calls = calls
        self._now = 0.0
        self.numbers: list[int] = []

    def run(self, num_rounds: int, loss: Callable[[int], float]) -> None:
        """Lets each lane make calls of 10 steps.

        Args:
            num_rounds: Number of calls of each lane.
            loss: Loss of a call, by the number of calls at a time.
        """
        for _ in range(num_rounds):
            number = self._calls.number
            if self.numbers[-1:] != [number]:
                self.numbers.append(number)
            # This many calls at a time take no longer than one.
            self._now += 1
            for lane in range(number):
                self._calls.observe_loss(10, lane, loss(number), self._now)
                self._calls.observe(10, lane, self._now)


def test_a_loss_that_jumps_beside_more_calls_has_fewer_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tfps_plugin")
    calls = CallsInFlight(1, at_first=1, most=2, course=LossCourse())
    training = _Training(calls)
    training.run(200, lambda number: 0.5)
    assert calls.is_kept
    assert calls.number == 2
    training.numbers.clear()
    training.run(20, lambda number: 0.9)
    assert training.numbers == [2, 1]
    assert not calls.is_kept
    assert "has jumped" in caplog.text
    # Once the loss has settled, more calls are tried and kept again.
    training.run(300, lambda number: 0.5)
    assert calls.is_kept
    assert calls.number == 2


def test_a_loss_that_jumps_beside_two_calls_never_keeps_them() -> None:
    calls = CallsInFlight(1, at_first=1, most=4, course=LossCourse())
    training = _Training(calls)
    training.run(2000, lambda number: 0.5 if number == 1 else 0.9)
    assert set(training.numbers) == {1, 2}
    assert not calls.is_kept


def test_a_loss_that_jumps_by_itself_changes_nothing() -> None:
    calls = CallsInFlight(1, at_first=1, most=2, course=LossCourse())
    for lane in range(1000):
        # Two at a time take twice as long: one is kept.
        calls.observe_loss(10, 0, 0.5, lane * calls.number)
        for each in range(calls.number):
            calls.observe(10, each, lane * calls.number)
        if calls.is_kept:
            break
    assert calls.is_kept
    for now in range(2000, 2100):
        calls.observe_loss(10, 0, now / 2000 * 5.0, now)
    assert calls.is_kept
    assert calls.number == 1


def test_the_speed_with_more_calls_than_at_first() -> None:
    calls = CallsInFlight(2, at_first=1, most=4, course=LossCourse())
    assert calls.raised_speed is None
    _train(calls, _waits_for(messages=0.01, computes=0.01), loss=0.5)
    assert calls.number == 2
    assert calls.raised_speed == pytest.approx(
        4 / _waits_for(messages=0.01, computes=0.01)(2), rel=0.2
    )
    one = CallsInFlight(2, at_first=1, most=4, course=LossCourse())
    _train(one, lambda number: 0.01 * number, loss=0.5)
    assert one.is_kept
    assert one.raised_speed is None
