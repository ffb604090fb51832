"""Tests of restarts."""

import pytest

from tfps_plugin.launcher.restarts import Restarts


def test_pauses_grow_and_the_number_is_bounded() -> None:
    restarts = Restarts(3)
    for number, pause_seconds in enumerate((1.0, 2.0, 4.0)):
        text = restarts.failed("worker 0", -9, now=100.0)
        assert text is not None
        assert f"restart {number + 1} of 3" in text
        assert restarts.next_due == 100.0 + pause_seconds
        assert restarts.take_due(100.0) == []
        assert restarts.take_due(100.0 + pause_seconds) == ["worker 0"]
        assert restarts.next_due is None
    assert restarts.failed("worker 0", -9, now=100.0) is None
    assert restarts.failed("worker 1", -9, now=100.0) is not None


def test_what_was_well_for_long_does_not_wait_longer() -> None:
    restarts = Restarts(10)
    restarts.failed("worker 0", -9, now=0.0)
    restarts.take_due(1.0)
    restarts.failed("worker 0", -9, now=500.0)
    assert restarts.next_due == 502.0
    restarts.take_due(502.0)
    restarts.failed("worker 0", -9, now=1200.0)
    assert restarts.next_due == 1201.0


@pytest.mark.parametrize(
    ("name", "returncode", "is_started_again"),
    [
        ("worker 0", 0, False),
        ("worker 0", 1, True),
        ("ps 0", -11, True),
        ("evaluator", 1, True),
        ("chief", -9, True),
        ("chief", 1, False),
        ("chief", 0, False),
    ],
)
def test_who_is_started_again(
    name: str, returncode: int, is_started_again: bool
) -> None:
    found = Restarts(1).failed(name, returncode, now=0.0)
    assert (found is not None) == is_started_again


@pytest.mark.parametrize(
    ("failed_before", "seconds", "is_started_again"),
    [
        ("ps 0", 5.0, True),
        ("worker 1", 600.0, True),
        ("worker 1", 3600.0, False),
        # Training goes on without it.
        ("evaluator", 5.0, False),
    ],
)
def test_a_chief_that_raised_because_a_task_had_died(
    failed_before: str, seconds: float, is_started_again: bool
) -> None:
    restarts = Restarts(1)
    restarts.failed(failed_before, -9, now=10.0)
    found = restarts.failed("chief", 1, now=10.0 + seconds)
    assert (found is not None) == is_started_again


def test_nobody_is_once_the_job_ends() -> None:
    restarts = Restarts(5)
    restarts.failed("ps 0", -9, now=0.0)
    restarts.cancel()
    assert list(restarts.waiting) == []
    assert restarts.failed("ps 1", -9, now=0.0) is None
