"""Tests of the decisions on when the evaluator ends."""

from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.evaluation.endings import Endings
from tfps_plugin.evaluation.endings import Silence


@pytest.mark.parametrize(
    ("limits", "number", "step", "expected"),
    [
        ({}, 99, 99, None),
        ({"max_evaluations": 3}, None, 9, None),
        ({"max_evaluations": 2}, None, 9, "max_evaluations=2"),
        ({"max_evaluations": 5}, 4, 9, None),
        ({"max_evaluations": 5}, 5, 9, "numbered 5"),
        ({"stop_after_step": 10}, 99, 9, None),
        ({"stop_after_step": 9}, None, 9, "step 9"),
    ],
)
def test_after_the_second_evaluation(
    limits: dict[str, Any], number: int | None, step: int, expected: str | None
) -> None:
    reason = Endings(**limits).after_evaluation(
        num_evaluations=2, number=number, step=step
    )
    assert reason is None if expected is None else expected in str(reason)


@pytest.mark.parametrize(
    ("waited_seconds", "num_pending", "is_job_over", "expected"),
    [
        (4, 0, False, None),
        (5, 0, False, "for 5 s"),
        (0, 0, True, "job is over"),
        (0, 1, True, None),
        (5, 1, True, "for 5 s"),
    ],
)
def test_while_waiting(
    waited_seconds: float,
    num_pending: int,
    is_job_over: bool,
    expected: str | None,
) -> None:
    reason = Endings(no_checkpoint_timeout_seconds=5).while_waiting(
        waited_seconds=waited_seconds,
        num_pending=num_pending,
        is_job_over=is_job_over,
    )
    assert reason is None if expected is None else expected in str(reason)


@pytest.mark.parametrize(
    "name",
    ["max_evaluations", "stop_after_step", "no_checkpoint_timeout_seconds"],
)
def test_refuses_limits_that_are_none(name: str) -> None:
    with pytest.raises(errors.InputError, match=f"{name}=0"):
        Endings(**{name: 0})


def _silence() -> Silence:
    return Silence(0, start_timeout_seconds=100, silence_seconds=10)


def test_a_job_may_be_slow_to_begin() -> None:
    silence = _silence()
    silence.probed(False, 99)
    assert not silence.is_over(99)
    assert silence.is_over(100)


def test_a_job_is_over_when_it_was_silent_for_long_enough() -> None:
    silence = _silence()
    silence.probed(True, 50)
    silence.probed(False, 59)
    assert not silence.is_over(59)
    assert silence.is_over(60)


def test_a_job_that_answers_again_goes_on() -> None:
    silence = _silence()
    silence.probed(True, 50)
    silence.probed(True, 59)
    assert not silence.is_over(68)
