"""Tests of the numbers of tasks of a job."""

import pytest

from tfps_plugin.cluster.serving.chief_watch import EXIT_NO_CHIEF
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.launcher.task_range import TaskRange
from tfps_plugin.launcher.task_range import WantedTasks


@pytest.fixture
def wanted() -> WantedTasks:
    return WantedTasks(TaskRange(WORKER, 2, 4))


def test_numbers_are_read() -> None:
    assert TaskRange.parse(WORKER, "2") == TaskRange(WORKER, 2, 2)
    assert not TaskRange.parse(WORKER, "2").may_change
    ps = TaskRange.parse(PARAMETER_SERVER, "2:8")
    assert ps == TaskRange(PARAMETER_SERVER, 2, 8)
    assert ps.may_change
    assert str(ps) == "--ps 2:8"


@pytest.mark.parametrize("text", ["", "0", "-1", "3:2", "2:", "a", "1:2:3"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number of parameter servers") as told:
        TaskRange.parse(PARAMETER_SERVER, text)
    assert f"Received: --ps {text!r}. Give" in str(told.value)


@pytest.mark.parametrize("number", [0, 5])
def test_numbers_out_of_the_range_are_refused(number: int) -> None:
    refusal = TaskRange(PARAMETER_SERVER, 2, 4).refusal(number)
    assert refusal is not None
    assert "Expected 1 to 4 parameter servers" in refusal
    assert "started with --ps 2:4" in refusal
    assert f"Received: --ps {number}." in refusal


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_numbers_of_the_range_are_not_refused(number: int) -> None:
    assert TaskRange(WORKER, 2, 4).refusal(number) is None


def test_another_number_is_refused_where_none_may_change() -> None:
    numbers = TaskRange(PARAMETER_SERVER, 1, 1)
    assert numbers.refusal(1) is None
    refusal = numbers.refusal(2)
    assert refusal is not None
    assert "of parameter servers of this job does not change" in refusal
    assert "tfps run --ps 1:2" in refusal
    assert "Received: --ps 2, for a job that was started with --ps 1" in refusal
    assert TaskRange(WORKER, 2, 2).refusal(1) is not None


def test_tasks_are_started_once_they_are_wanted_and_have_ended(
    wanted: WantedTasks,
) -> None:
    assert wanted.take_due({0, 1}) == []
    wanted.change_to(4)
    assert wanted.take_due({0, 1}) == [2, 3]
    assert wanted.take_due({0, 1, 2}) == [], "a task that fails is another's"
    wanted.change_to(2)
    wanted.change_to(3)
    assert wanted.take_due({0, 1, 2, 3}) == [], "it is about to end"
    assert wanted.take_due({0, 1}) == [2]
    wanted.change_to(4)
    wanted.change_to(2)
    assert wanted.take_due({0, 1}) == []
    assert wanted.number == 2


def test_a_task_that_was_removed_is_nothing_to_report(
    wanted: WantedTasks,
) -> None:
    wanted.change_to(1)
    assert wanted.ended(1, 0) is None
    assert wanted.take_due({0}) == []


@pytest.mark.parametrize("returncode", [0, -9, EXIT_NO_CHIEF])
def test_a_task_that_is_wanted_again_is_started_however_it_ends(
    wanted: WantedTasks, returncode: int
) -> None:
    wanted.change_to(1)
    wanted.change_to(2)
    assert "started again" in str(wanted.ended(1, returncode))
    assert wanted.take_due({0}) == [1]
    assert wanted.ended(1, -9) is None, "it fails, as others do"


def test_a_task_that_fails_is_left_to_others(wanted: WantedTasks) -> None:
    wanted.change_to(3)
    assert wanted.take_due({0, 1}) == [2]
    wanted.change_to(2)
    # The chief may still need what it holds.
    assert wanted.ended(2, -9) is None
    assert wanted.ended(0, -9) is None


def test_a_task_that_no_chief_asks_for_is_started_again_while_it_is_wanted(
    wanted: WantedTasks,
) -> None:
    wanted.change_to(3)
    assert wanted.take_due({0, 1}) == [2]
    assert "started again" in str(wanted.ended(2, EXIT_NO_CHIEF))
    assert wanted.take_due({0, 1}) == [2]
    wanted.change_to(2)
    assert "not wanted" in str(wanted.ended(2, EXIT_NO_CHIEF))
    assert wanted.take_due({0, 1}) == []
    assert wanted.ended(0, EXIT_NO_CHIEF) is None, "the chief is gone"
