"""Tests of the number of workers of a job."""

import pytest

from tfps_plugin.launcher.worker_range import WantedWorkers
from tfps_plugin.launcher.worker_range import WorkerRange


def test_numbers_are_read() -> None:
    assert WorkerRange.parse("2") == WorkerRange(2, 2)
    assert not WorkerRange.parse("2").may_change
    assert WorkerRange.parse("2:8") == WorkerRange(2, 8)
    assert WorkerRange.parse("2:8").may_change


@pytest.mark.parametrize("text", ["", "0", "-1", "3:2", "2:", "a", "1:2:3"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="received"):
        WorkerRange.parse(text)


def test_workers_are_started_once_they_are_wanted_and_have_ended() -> None:
    wanted = WantedWorkers(WorkerRange(2, 4))
    assert wanted.take_due({0, 1}) == []
    wanted.change_to(4)
    assert wanted.take_due({0, 1}) == [2, 3]
    assert wanted.take_due({0, 1, 2}) == [], "a worker that fails is another's"
    wanted.change_to(2)
    wanted.change_to(3)
    assert wanted.take_due({0, 1, 2, 3}) == [], "it is about to end"
    assert wanted.take_due({0, 1}) == [2]
    wanted.change_to(4)
    wanted.change_to(2)
    assert wanted.take_due({0, 1}) == []
    assert wanted.number == 2


@pytest.mark.parametrize("number", [0, 5])
def test_other_numbers_are_refused(number: int) -> None:
    wanted = WantedWorkers(WorkerRange(2, 4))
    refusal = wanted.refusal(number)
    assert refusal is not None
    assert f"--workers {number}" in refusal
    assert wanted.refusal(1) is None
