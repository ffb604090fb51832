"""Tests of the stall watch."""

from tfps_plugin.coordinator.members.stall_watch import StallWatch


def test_overdue_is_what_runs_longer_than_patience() -> None:
    watch = StallWatch(patience_seconds=30.0)
    busy_since = {0: None, 1: 100.0, 2: 80.0, 3: 90.0}
    assert watch.overdue(busy_since, now=109.0) == ()
    assert watch.overdue(busy_since, now=110.0) == (2,)
    assert watch.overdue(busy_since, now=121.0) == (2, 3)


def test_given_up_after_silences_in_a_row() -> None:
    watch = StallWatch(30.0, max_silences=3)
    assert [watch.silent("ps 0") for _ in range(2)] == [False, False]
    watch.answered("ps 0")
    assert [watch.silent("ps 0") for _ in range(3)] == [False, False, True]
    assert not watch.silent("ps 0"), "counts from the start again"


def test_tasks_are_counted_apart() -> None:
    watch = StallWatch(30.0, max_silences=2)
    assert not watch.silent("worker 0")
    assert not watch.silent("worker 1")
    assert watch.silent("worker 0")


def test_everybody_is_asked_from_time_to_time() -> None:
    watch = StallWatch(patience_seconds=30.0)
    due = [now for now in range(0, 100, 5) if watch.is_roll_call_due(now)]
    assert due == [30, 60, 90]


def test_who_was_silent_is_suspect_until_it_answers_or_is_given_up() -> None:
    watch = StallWatch(30.0, max_silences=2)
    assert not watch.is_suspect("ps 0")
    watch.silent("ps 0")
    assert watch.is_suspect("ps 0")
    watch.answered("ps 0")
    assert not watch.is_suspect("ps 0")
    watch.silent("ps 0")
    watch.silent("ps 0")
    assert not watch.is_suspect("ps 0")
