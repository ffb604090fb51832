"""Tests of the decision of a task to end itself."""

from tfps_plugin.cluster.serving.chief_watch import ChiefWatch
from tfps_plugin.cluster.serving.chief_watch import no_chief_text
from tfps_plugin.cluster.serving.messages import ChiefHere
from tfps_plugin.cluster.serving.messages import JobOver
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import TaskConfig

_FIRST = ChiefHere("first", "a:1", 1)
_SECOND = ChiefHere("second", "b:1", 2)


def _watch() -> ChiefWatch:
    return ChiefWatch(
        100.0, chief_start_timeout_seconds=60.0, chief_grace_seconds=10.0
    )


def test_ends_well_when_its_chief_says_so() -> None:
    watch = _watch()
    assert watch.heard(_FIRST, 110.0) is None
    assert watch.chief == _FIRST
    ending = watch.heard(JobOver("first"), 120.0)
    assert ending is not None
    assert ending.exit_code == 0


def test_ends_well_when_the_job_is_over_before_any_chief_was_heard_of() -> None:
    ending = _watch().heard(JobOver("first"), 110.0)
    assert ending is not None
    assert ending.exit_code == 0


def test_a_replaced_chief_cannot_end_the_job() -> None:
    watch = _watch()
    watch.heard(_FIRST, 110.0)
    watch.heard(_SECOND, 120.0)
    assert watch.heard(JobOver("first"), 121.0) is None
    assert watch.chief == _SECOND


def test_gives_up_if_no_chief_ever_connects() -> None:
    watch = _watch()
    assert watch.seconds_left(110.0) == 50.0
    assert watch.check(159.9) is None
    ending = watch.check(160.0)
    assert ending is not None
    assert ending.exit_code == 69
    assert "chief_start_timeout_seconds" in ending.reason


def test_gives_up_a_chief_that_stays_silent() -> None:
    watch = _watch()
    watch.heard(_FIRST, 200.0)
    assert watch.probed(True, 205.0) is None
    news = watch.probed(False, 206.0)
    assert news is not None
    assert "does not answer" in news
    assert watch.probed(False, 207.0) is None
    assert watch.check(214.9) is None
    ending = watch.check(215.0)
    assert ending is not None
    assert ending.exit_code == 69
    assert "a:1 has not answered for 10 s" in ending.reason
    assert "chief_grace_seconds" in ending.reason


def test_a_chief_that_comes_back_in_time_is_kept() -> None:
    watch = _watch()
    watch.heard(_FIRST, 200.0)
    watch.probed(False, 205.0)
    assert watch.probed(True, 209.0) == "the chief answers again"
    assert watch.check(218.9) is None


def test_another_chief_takes_over_in_time() -> None:
    watch = _watch()
    watch.heard(_FIRST, 200.0)
    watch.probed(False, 209.0)
    watch.heard(_SECOND, 209.5)
    assert watch.check(219.0) is None
    assert watch.probed(True, 219.0) is None


def test_says_at_widening_intervals_that_there_is_no_chief() -> None:
    watch = ChiefWatch(
        0.0, chief_start_timeout_seconds=3600.0, chief_grace_seconds=10.0
    )
    told = [
        now for now in range(3600) if watch.reminder(float(now)) is not None
    ]
    assert told == [30, 60, 120, 240, 480, 960, 1920, 2880]


def test_says_nothing_of_a_missing_chief_once_there_was_one() -> None:
    watch = _watch()
    watch.heard(_FIRST, 120.0)
    assert watch.reminder(1000.0) is None


def test_who_waits_for_a_chief_says_what_to_check() -> None:
    cluster = ClusterSpec(("a:1", "a:2"), ("b:1",))
    without = no_chief_text(TaskConfig(cluster, "worker", 1), 30.0, 3570.0)
    assert "after 30 s" in without
    assert "worker 1 listens at a:2 and waits for another 3570 s" in without
    assert "has 'a:2' as worker[1]" in without
    assert "this cluster names no chief" in without
    named = TaskConfig(cluster.with_chief("c:1"), "ps", 0)
    assert "cluster.chief[0]='c:1'" in no_chief_text(named, 30.0, 3570.0)


def test_a_task_that_is_told_to_end_waits_until_the_chief_lets_it_go() -> None:
    watch = _watch()
    watch.heard(_FIRST, 110.0)
    watch.told_to_end(120.0, 25.0, exit_code=0)
    assert watch.was_told_to_end
    assert watch.seconds_left(121.0) == 24.0
    assert watch.check(121.0) is None
    ending = watch.heard(JobOver("first"), 122.0)
    assert ending is not None
    assert ending.exit_code == 0
    assert "let it go" in ending.reason


def test_a_task_that_is_told_to_end_waits_no_longer_than_it_may() -> None:
    watch = _watch()
    watch.heard(_FIRST, 110.0)
    watch.told_to_end(120.0, 25.0, exit_code=0)
    ending = watch.check(145.0)
    assert ending is not None
    assert ending.exit_code == 143
    assert "drain_seconds" in ending.reason


def test_a_task_that_is_told_to_end_does_not_wait_for_a_dead_chief() -> None:
    watch = _watch()
    watch.heard(_FIRST, 110.0)
    watch.told_to_end(120.0, 25.0, exit_code=0)
    watch.probed(False, 123.0)
    ending = watch.check(123.0)
    assert ending is not None
    assert ending.exit_code == 143
