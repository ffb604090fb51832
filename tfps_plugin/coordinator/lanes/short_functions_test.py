"""Tests of the detection of short functions."""

from tfps_plugin.coordinator.lanes.short_functions import ShortFunctions

_SHORT, _LONG = 1e-5, 1e-3


class _Clock:
    """Functions that end one after another."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.functions = ShortFunctions()

    def end(self, seconds: float, number: int = 1) -> bool:
        for _ in range(number):
            began_at = self.now
            self.now += seconds
            self.functions.observe(began_at, self.now)
        return self.functions.are_short

    def num_until_long(self, seconds: float) -> int:
        number = 1
        while self.end(seconds):
            number += 1
        return number

    def seconds_until_tried(self) -> float:
        since = self.now
        while not self.end(_LONG):
            pass
        return self.now - since


def test_short_ones_stay_short() -> None:
    assert _Clock().end(_SHORT, 10_000)


def test_long_ones_are_found_out_soon() -> None:
    assert _Clock().num_until_long(_LONG) < 20


def test_long_ones_after_many_short_ones_are_found_out_soon() -> None:
    clock = _Clock()
    clock.end(_SHORT, 1000)
    assert clock.num_until_long(_LONG) < 20


def test_some_exceptions_change_nothing() -> None:
    clock = _Clock()
    for _ in range(1000):
        clock.end(_LONG)
        assert clock.end(_SHORT, 3)


def test_it_is_tried_again_after_longer_and_longer_pauses() -> None:
    clock = _Clock()
    pauses = []
    for _ in range(10):
        clock.num_until_long(_LONG)
        pauses.append(clock.seconds_until_tried())
    assert pauses == sorted(pauses)
    assert 0.05 < pauses[0] < 0.2
    assert 4 < pauses[-1] < 6


def test_what_takes_very_long_is_not_tried() -> None:
    clock = _Clock()
    clock.num_until_long(_LONG)
    assert not clock.end(0.01, 10_000)
    clock.seconds_until_tried()


def test_pauses_are_short_again_after_functions_were() -> None:
    clock = _Clock()
    for _ in range(10):
        clock.num_until_long(_LONG)
        clock.seconds_until_tried()
    clock.end(_SHORT, 100)
    clock.num_until_long(_LONG)
    assert clock.seconds_until_tried() < 0.2


def test_what_began_beside_many_others_tells_nothing() -> None:
    clock = _Clock()
    began_at = clock.now
    clock.num_until_long(_LONG)
    clock.seconds_until_tried()
    for _ in range(100):
        clock.functions.observe(began_at, clock.now)
    assert clock.functions.are_short


def test_one_that_holds_the_others_up_is_long() -> None:
    clock = _Clock()
    clock.functions.found_long(clock.now)
    assert not clock.functions.are_short
    assert clock.seconds_until_tried() < 0.2
