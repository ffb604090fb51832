"""Tests of moments at which nothing of the program runs."""

import threading
from collections.abc import Callable

import pytest

from tfps_plugin.coordinator.elastic import safe_points
from tfps_plugin.coordinator.elastic.safe_points import SafePoints
from tfps_plugin.variables.chief import steps_in_flight

_SECONDS = 20.0


class _Program:
    """A thread that reaches safe points when a test says so."""

    def __init__(self, points: SafePoints) -> None:
        self._points = points
        self._may_reach = threading.Event()
        self.is_known = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self.is_known.wait(_SECONDS)

    def _run(self) -> None:
        self._points.reach()
        self.is_known.set()
        assert self._may_reach.wait(_SECONDS)
        try:
            self._points.reach()
        except BaseException as error:
            self.error = error

    def reach(self) -> None:
        self._may_reach.set()
        self.thread.join(_SECONDS)


def test_without_a_program_the_action_runs_at_once() -> None:
    ran: list[int] = []
    SafePoints(lambda seconds: True).run(
        lambda: ran.append(threading.get_ident()), 0.0
    )
    assert ran == [threading.get_ident()]


def test_the_thread_of_the_program_runs_the_action() -> None:
    points = SafePoints(lambda seconds: True)
    program = _Program(points)
    ran: list[int | None] = []
    asking = threading.Thread(
        target=points.run,
        args=(lambda: ran.append(threading.get_ident()), _SECONDS),
    )
    asking.start()
    while not points.is_wanted:
        asking.join(0.001)
    assert not ran
    program.reach()
    asking.join(_SECONDS)
    assert ran == [program.thread.ident]
    assert not points.is_wanted


def test_a_thread_that_has_ended_is_no_program() -> None:
    points = SafePoints(lambda seconds: True)
    _Program(points).reach()
    ran: list[str] = []
    points.run(lambda: ran.append("here"), 0.0)
    assert ran == ["here"]


def test_an_action_that_nobody_runs_is_withdrawn() -> None:
    points = SafePoints(lambda seconds: True)
    program = _Program(points)
    ran: list[str] = []
    with pytest.raises(TimeoutError, match="has not reached a moment"):
        points.run(lambda: ran.append("late"), 0.0)
    program.reach()
    assert not ran


def test_functions_that_do_not_end_keep_the_action_from_running() -> None:
    waited: list[float] = []

    def drain(seconds: float) -> bool:
        waited.append(seconds)
        return False

    ran: list[str] = []
    with pytest.raises(TimeoutError):
        SafePoints(drain).run(lambda: ran.append("early"), 0.0)
    assert waited
    assert not ran


def test_an_error_of_the_action_is_of_who_asked() -> None:
    points = SafePoints(lambda seconds: True)
    program = _Program(points)
    found: list[BaseException] = []

    def fail() -> None:
        raise ValueError("mine")

    def ask() -> None:
        try:
            points.run(fail, _SECONDS)
        except ValueError as error:
            found.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while not points.is_wanted:
        asking.join(0.001)
    program.reach()
    asking.join(_SECONDS)
    assert str(found[0]) == "mine"
    assert program.error is None


def test_an_error_of_a_function_is_raised_at_once() -> None:
    def raise_error() -> None:
        raise ValueError("of a function")

    ran: list[str] = []
    points = SafePoints(lambda seconds: False, raise_error)
    with pytest.raises(ValueError, match="of a function"):
        points.run(lambda: ran.append("no"), _SECONDS)
    assert not points.is_wanted
    assert not ran


def test_nobody_waits_for_a_program_that_is_over() -> None:
    points = SafePoints(lambda seconds: True, is_over=lambda: True)
    program = _Program(points)
    with pytest.raises(TimeoutError):
        points.run(lambda: None, 60 * _SECONDS)
    program.reach()


def test_steps_end_before_the_action() -> None:
    order: list[str] = []
    with steps_in_flight.finishing(lambda: order.append("steps")):
        SafePoints(lambda seconds: True).run(
            lambda: order.append("action"), 0.0
        )
    assert order == ["steps", "action"]


def _in_fit(reach: Callable[[], None]) -> None:
    with steps_in_flight.finishing(lambda: None):
        reach()
        # As while a step is being made.
        with steps_in_flight.finishing(None):
            reach()


def _off_program(reach: Callable[[], None]) -> None:
    with safe_points.held_off():
        reach()


@pytest.mark.parametrize("where", [_in_fit, _off_program])
def test_calls_within_a_step_are_no_safe_points(
    where: Callable[[Callable[[], None]], None],
) -> None:
    points = SafePoints(lambda seconds: True)
    program = _Program(points)
    ran: list[str] = []
    asking = threading.Thread(
        target=points.run, args=(lambda: ran.append("now"), _SECONDS)
    )
    asking.start()
    while not points.is_wanted:
        asking.join(0.001)

    def reach() -> None:
        points.reach()
        if where is _off_program:
            with points.scheduling():
                pass

    where(reach)
    assert not ran
    program.reach()
    asking.join(_SECONDS)
    assert ran == ["now"]
