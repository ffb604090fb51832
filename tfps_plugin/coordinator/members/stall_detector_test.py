"""Tests of the stall detector."""

from tfps_plugin.coordinator.members.stall_detector import Restored
from tfps_plugin.coordinator.members.stall_detector import StallDetector


def test_overdue_is_what_runs_longer_than_patience() -> None:
    detector = StallDetector(patience_seconds=30.0)
    busy_since = {0: None, 1: 100.0, 2: 80.0, 3: 90.0}
    assert detector.overdue(busy_since, now=109.0) == ()
    assert detector.overdue(busy_since, now=110.0) == (2,)
    assert detector.overdue(busy_since, now=121.0) == (2, 3)


def test_given_up_after_silences_in_a_row() -> None:
    detector = StallDetector(30.0, max_silences=3)
    assert [detector.silent("ps 0") for _ in range(2)] == [False, False]
    detector.answered("ps 0")
    assert [detector.silent("ps 0") for _ in range(3)] == [False, False, True]
    assert not detector.silent("ps 0"), "counts from the start again"


def test_tasks_are_counted_apart() -> None:
    detector = StallDetector(30.0, max_silences=2)
    assert not detector.silent("worker 0")
    assert not detector.silent("worker 1")
    assert detector.silent("worker 0")


def test_everybody_is_asked_from_time_to_time() -> None:
    detector = StallDetector(patience_seconds=30.0)
    due = [now for now in range(0, 100, 5) if detector.is_roll_call_due(now)]
    assert due == [30, 60, 90]


def test_who_was_silent_is_suspect_until_it_answers_or_is_given_up() -> None:
    detector = StallDetector(30.0, max_silences=2)
    assert not detector.is_suspect("ps 0")
    detector.silent("ps 0")
    assert detector.is_suspect("ps 0")
    detector.answered("ps 0")
    assert not detector.is_suspect("ps 0")
    detector.silent("ps 0")
    detector.silent("ps 0")
    assert not detector.is_suspect("ps 0")


def test_hanging_calls_are_looked_for_once_and_not_too_early() -> None:
    detector = StallDetector(30.0, hanging_seconds=5.0)
    detector.restored([1], 100.0)
    detector.restored([], 101.0)
    detector.restored([0, 1], 102.0)
    assert list(detector.due_for_hanging_calls(104.9)) == []
    assert list(detector.due_for_hanging_calls(106.0)) == [Restored([1], 100.0)]
    assert list(detector.due_for_hanging_calls(106.0)) == []
    assert list(detector.due_for_hanging_calls(200.0)) == [
        Restored([0, 1], 102.0)
    ]


def test_cancelled_calls_are_due_once_and_not_too_early() -> None:
    detector = StallDetector(30.0, hanging_seconds=5.0)
    due = detector.due_cancelled_calls
    assert due({"first"}, 100.0) == 0
    assert due({"first", "second"}, 104.9) == 0
    assert due({"first", "second"}, 105.0) == 1
    assert due({"first", "second"}, 110.0) == 1
    assert due({"first", "second"}, 200.0) == 0
    # It has ended, and another call may have its key.
    assert due({"first"}, 201.0) == 0
    assert due({"first", "second"}, 202.0) == 0
    assert due({"second"}, 207.0) == 1
