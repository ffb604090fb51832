import signal

import pytest

from tfps_plugin.launcher.stop_sequence import Reason
from tfps_plugin.launcher.stop_sequence import StopSequence
from tfps_plugin.launcher.stop_sequence import plan_steps

_PROGRAMS = frozenset({"chief", "evaluator"})
_ALL = ("ps 0", "worker 0", "chief", "evaluator")
_TASKS = ("ps 0", "worker 0")


def _sequence(reason: Reason) -> StopSequence:
    steps = plan_steps(
        reason, grace_seconds=30, evaluator_seconds=60, task_seconds=5
    )
    return StopSequence(steps, _PROGRAMS.__contains__)


def _advance(
    sequence: StopSequence, now: float, running: tuple[str, ...]
) -> tuple[signal.Signals | None, tuple[str, ...]] | None:
    result = sequence.advance(now, running)
    return result and (result[0].signal, result[1])


@pytest.mark.parametrize(
    ("reason", "first"),
    [
        (Reason.INTERRUPTED, signal.SIGINT),
        (Reason.TERMINATED, signal.SIGTERM),
    ],
)
def test_programs_are_asked_first(
    reason: Reason, first: signal.Signals
) -> None:
    sequence = _sequence(reason)
    assert _advance(sequence, 0, _ALL) == (first, ("chief", "evaluator"))
    assert sequence.deadline == 30
    assert _advance(sequence, 29, _ALL) is None


def test_tasks_are_asked_once_the_programs_have_ended() -> None:
    sequence = _sequence(Reason.INTERRUPTED)
    _advance(sequence, 0, _ALL)
    assert _advance(sequence, 1, _TASKS) == (signal.SIGTERM, _TASKS)
    assert _advance(sequence, 2, _TASKS) is None
    assert _advance(sequence, 6, ("ps 0",)) == (signal.SIGKILL, ("ps 0",))


def test_programs_that_do_not_end_are_overtaken() -> None:
    sequence = _sequence(Reason.INTERRUPTED)
    _advance(sequence, 0, _ALL)
    assert _advance(sequence, 30, _ALL) == (signal.SIGTERM, _ALL)
    assert _advance(sequence, 35, _ALL) == (signal.SIGKILL, _ALL)


def test_when_the_chief_has_ended_servers_are_asked_at_once() -> None:
    sequence = _sequence(Reason.CHIEF_ENDED)
    assert _advance(sequence, 0, _TASKS) == (signal.SIGTERM, _TASKS)
    assert _advance(sequence, 1, ()) is None


def test_when_the_chief_has_ended_the_evaluator_may_finish() -> None:
    sequence = _sequence(Reason.CHIEF_ENDED)
    running = ("ps 0", "evaluator")
    assert _advance(sequence, 0, running) == (signal.SIGTERM, ("ps 0",))
    evaluator = ("evaluator",)
    assert _advance(sequence, 1, evaluator) == (None, evaluator)
    assert sequence.deadline == 61
    assert _advance(sequence, 60, evaluator) is None
    assert _advance(sequence, 61, evaluator) == (signal.SIGTERM, evaluator)
    assert _advance(sequence, 66, evaluator) == (signal.SIGKILL, evaluator)


def test_a_user_in_a_hurry_does_not_wait_for_the_evaluator() -> None:
    sequence = _sequence(Reason.CHIEF_ENDED)
    evaluator = ("evaluator",)
    assert _advance(sequence, 0, evaluator) == (None, evaluator)
    sequence.hurry()
    assert _advance(sequence, 1, evaluator) == (signal.SIGTERM, evaluator)


def test_hurry_takes_the_next_step() -> None:
    sequence = _sequence(Reason.INTERRUPTED)
    _advance(sequence, 0, _ALL)
    sequence.hurry()
    assert _advance(sequence, 1, _ALL) == (signal.SIGTERM, _ALL)
    sequence.hurry()
    assert _advance(sequence, 1, _ALL) == (signal.SIGKILL, _ALL)


def test_fails_only_when_the_last_step_did_not_help() -> None:
    sequence = _sequence(Reason.CHIEF_ENDED)
    _advance(sequence, 0, _TASKS)
    assert not sequence.has_failed(100)
    _advance(sequence, 5, _TASKS)
    assert not sequence.has_failed(100)
    _advance(sequence, 10, _TASKS)  # Everyone, by SIGTERM.
    _advance(sequence, 15, _TASKS)
    sequence.hurry()
    assert not sequence.has_failed(19)
    assert _advance(sequence, 20, _TASKS) is None
    assert sequence.has_failed(20)


def test_has_nothing_to_do_when_nobody_runs() -> None:
    assert _advance(_sequence(Reason.CHIEF_ENDED), 0, ()) is None
