"""Tests of the deadline for closures that no worker can run."""

from tfps_plugin.coordinator.members.no_worker_deadline import Action
from tfps_plugin.coordinator.members.no_worker_deadline import NoWorkerDeadline


def test_nothing_waits() -> None:
    deadline = NoWorkerDeadline(60.0)
    assert deadline.check(is_waiting=False, now=100.0) is Action.NOTHING
    assert deadline.seconds_left(100.0) is None


def test_reports_at_once_and_from_time_to_time_and_then_gives_up() -> None:
    deadline = NoWorkerDeadline(60.0)
    actions = {
        now: deadline.check(is_waiting=True, now=float(now))
        for now in range(100, 165, 5)
    }
    assert {now for now in actions if actions[now] is Action.REPORT} == {
        100,
        130,
    }
    assert min(now for now in actions if actions[now] is Action.GIVE_UP) == 160


def test_giving_up_starts_the_time_again() -> None:
    deadline = NoWorkerDeadline(60.0)
    deadline.check(is_waiting=True, now=100.0)
    assert deadline.check(is_waiting=True, now=165.0) is Action.GIVE_UP
    assert deadline.waited_seconds == 65.0
    assert deadline.seconds_left(165.0) is None
    assert deadline.check(is_waiting=True, now=166.0) is Action.REPORT


def test_a_worker_in_between_starts_the_time_again() -> None:
    deadline = NoWorkerDeadline(60.0)
    assert deadline.check(is_waiting=True, now=100.0) is Action.REPORT
    assert deadline.seconds_left(140.0) == 20.0
    assert deadline.check(is_waiting=False, now=150.0) is Action.NOTHING
    assert deadline.check(is_waiting=True, now=155.0) is Action.REPORT
    assert deadline.seconds_left(155.0) == 60.0
