"""Tests of the roster of workers."""

from tfps_plugin.coordinator.members.roster import Roster


def test_everybody_is_present_at_first() -> None:
    roster = Roster(3)
    assert roster.present == (0, 1, 2)
    assert roster.absent == ()
    assert roster.is_present(2, generation=0)
    assert roster.seconds_until_due(0.0) is None
    assert not roster.is_empty


def test_losing_is_news_once() -> None:
    roster = Roster(2)
    assert roster.lose(1, generation=0, now=10.0)
    assert not roster.lose(1, generation=0, now=11.0)
    assert roster.absent == (1,)
    assert roster.present == (0,)
    assert not roster.is_present(1, generation=0)


def test_a_new_generation_at_each_return() -> None:
    roster = Roster(2)
    roster.lose(1, generation=0, now=10.0)
    assert roster.admit(1, now=14.5) == 4.5
    assert roster.generation(1) == 1
    assert not roster.is_present(1, generation=0)
    assert roster.is_present(1, generation=1)
    assert not roster.lose(1, generation=0, now=20.0), "old news"
    assert roster.lose(1, generation=1, now=20.0)


def test_asks_less_and_less_often() -> None:
    roster = Roster(1)
    roster.lose(0, generation=0, now=0.0)
    assert roster.due(0.0) == ()
    now = 0.0
    waits = []
    for _ in range(20):
        wait = roster.seconds_until_due(now)
        assert wait is not None
        waits.append(wait)
        now += wait
        assert roster.due(now) == (0,)
        roster.no_answer(0, now)
        assert roster.due(now) == ()
    assert waits == sorted(waits)
    assert waits[0] == 0.25
    assert waits[-1] == 5.0


def test_overdue_is_due_now() -> None:
    roster = Roster(2)
    roster.lose(0, generation=0, now=0.0)
    roster.lose(1, generation=0, now=1.0)
    assert roster.seconds_until_due(100.0) == 0.0
    assert roster.due(100.0) == (0, 1)


def test_it_is_empty_while_all_are_absent() -> None:
    roster = Roster(2)
    roster.lose(0, generation=0, now=5.0)
    seen = [roster.is_empty]
    roster.lose(1, generation=0, now=7.0)
    seen.append(roster.is_empty)
    roster.admit(0, now=9.0)
    seen.append(roster.is_empty)
    assert seen == [False, True, False]


def test_late_workers_are_asked_at_once_and_join() -> None:
    roster = Roster(3, late=[1], now=10.0)
    assert roster.present == (0, 2)
    assert roster.absent == (1,)
    assert roster.due(10.0) == (1,)
    assert not roster.is_empty
    assert not roster.lose(1, generation=0, now=11.0), "it never was there"
    assert roster.is_late(1)
    assert not roster.is_late(0)
    roster.no_answer(1, now=10.0)
    assert roster.seconds_until_due(10.0) == 0.25
    assert roster.admit(1, now=14.0) == 4.0
    assert roster.is_present(1, generation=1)
    assert not roster.is_late(1)


def test_a_late_worker_that_is_lost_later_is_not_late_again() -> None:
    roster = Roster(1, late=[0], now=1.0)
    assert roster.is_empty
    roster.admit(0, now=2.0)
    assert not roster.is_empty
    assert roster.lose(0, generation=1, now=3.0)
    assert not roster.is_late(0)


def test_workers_are_added_and_removed() -> None:
    roster = Roster(2)
    roster.add(2, now=5.0)
    assert roster.indices == (0, 1, 2)
    assert roster.absent == roster.due(5.0) == (2,)
    assert roster.is_late(2)
    roster.admit(2, now=6.0)
    assert roster.present == (0, 1, 2)
    roster.lose(0, generation=0, now=7.0)
    roster.retire(0)
    assert list(roster.indices) == list(roster.present) == [1, 2]
    assert not roster.absent
    assert not roster.due(100.0)
    assert not roster.is_present(0, generation=0)
    roster.lose(1, generation=0, now=8.0)
    roster.lose(2, generation=1, now=8.0)
    assert roster.is_empty
    roster.add(0, now=9.0)
    roster.admit(0, now=9.0)
    assert roster.is_present(0, generation=1)
