"""Tests of the membership, its thread and the watchdog.

Their effect on closures is tested elsewhere.
"""

import math
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.closures.shared_ledger import SharedLedger
from tfps_plugin.coordinator.members import failures
from tfps_plugin.coordinator.members import membership_thread
from tfps_plugin.coordinator.members.failure_examiner import FailureExaminer
from tfps_plugin.coordinator.members.inspector import Inspector
from tfps_plugin.coordinator.members.membership import Membership
from tfps_plugin.coordinator.members.membership_thread import MembershipThread
from tfps_plugin.coordinator.members.ps_recovery import PsRecovery
from tfps_plugin.coordinator.members.stall_detector import StallDetector
from tfps_plugin.coordinator.members.watchdog import Watchdog
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters

_TIMEOUT_SECONDS = 30.0


class _Busy:
    """A driver of a worker that is always busy."""

    def __init__(self, since: float | None = 0.0) -> None:
        self.since = since
        self.needs: tuple[int, ...] = ()
        self.abandoned_needs: tuple[int, ...] = ()
        self.cancelled_at: float | None = None
        self.asked = threading.Event()
        self.abandoned = threading.Event()

    def busy_since(self) -> float | None:
        return self.since

    def hangs_on(
        self, parameter_servers: Collection[int], before: float
    ) -> bool:
        self.asked.set()
        return bool(set(self.needs) & set(parameter_servers))

    def abandoned_call_needs(
        self, parameter_servers: Collection[int], before: float
    ) -> bool:
        return bool(set(self.abandoned_needs) & set(parameter_servers))

    def abandon(self) -> None:
        self.abandoned.set()

    def awaits_lost(self) -> bool:
        return False

    def abandon_cancelled(self, since: float) -> int:
        if self.cancelled_at is None or self.cancelled_at >= since:
            return 0
        self.abandoned.set()
        self.cancelled_at = None
        return 1


class _Bench:
    """A membership over a cluster without processes."""

    def __init__(
        self,
        session: FakeSession,
        drivers: Any,
        restorer: Any = None,
        hanging_seconds: float = 5.0,
        stale_seconds: float = 60.0,
    ) -> None:
        self.session = session
        self.queue = ClosureQueue(SharedLedger(capacity=10))
        self.events = events.Events()
        self.forgotten: list[int] = []
        self._seen: list[events.Event] = []
        self._condition = threading.Condition()
        self.events.subscribe(self._record)
        counters = Counters()
        inspector = Inspector(session, counters, self.events)
        recovery = restorer and PsRecovery(
            session,
            inspector,
            restorer,
            counters,
            self.events,
            timeout_seconds=60.0,
        )
        self.membership = Membership(
            session, self.queue.lanes, counters, self.events, recovery
        )
        self.examiner = FailureExaminer(
            session, self.membership, inspector, stale_seconds
        )
        self.thread = MembershipThread(
            session,
            self.queue,
            self.membership,
            self.examiner,
            Watchdog(
                session,
                self.queue,
                self.membership,
                self.examiner,
                inspector,
                StallDetector(
                    patience_seconds=0.0,
                    max_silences=2,
                    hanging_seconds=hanging_seconds,
                ),
                drivers,
            ),
            self.events,
            no_worker_timeout_seconds=60.0,
            forget_worker=self.forgotten.append,
            ps_recovery=recovery,
        )
        self.thread.start()

    def _record(self, event: events.Event) -> None:
        with self._condition:
            self._seen.append(event)
            self._condition.notify_all()

    def wait_for(self, kind: type[events.Event], number: int = 1) -> None:
        def count() -> int:
            return len([e for e in self._seen if isinstance(e, kind)])

        with self._condition:
            assert self._condition.wait_for(
                lambda: count() >= number, _TIMEOUT_SECONDS
            )


@pytest.fixture
def make(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., _Bench]]:
    monkeypatch.setattr(membership_thread, "_WATCH_INTERVAL_SECONDS", 0.02)
    benches: list[_Bench] = []

    def make(
        session: FakeSession, drivers: Any = None, *args: Any, **options: Any
    ) -> _Bench:
        benches.append(_Bench(session, drivers or {}, *args, **options))
        return benches[-1]

    yield make
    for bench in benches:
        assert bench.thread.stop(_TIMEOUT_SECONDS)
        bench.queue.stop()


def test_lost_and_readmitted_again_and_again(
    make: Callable[..., _Bench],
) -> None:
    session = FakeSession(num_workers=3)
    bench = make(session)
    for generation in range(2):
        session.start("worker", 1)
        assert bench.membership.report_lost(1, generation, "restarted")
        assert not bench.membership.report_lost(1, generation, "restarted")
        bench.wait_for(events.WorkerReadmitted, generation + 1)
        assert bench.membership.is_present(1, generation + 1)
    assert session.log == ["delist worker 1", "readmit worker 1"] * 2
    assert bench.forgotten == [1, 1]
    assert bench.membership.generation(0) == 0


def test_a_late_worker_gets_nothing_until_it_joins(
    make: Callable[..., _Bench],
) -> None:
    session = FakeSession(num_workers=2)
    session.leave_out("worker", 1)
    bench = make(session)
    assert bench.membership.absent == (1,)
    assert not bench.membership.is_present(1, generation=0)
    assert bench.queue.lanes._scheduler._idle.is_paused(1)
    session.start("worker", 1)
    bench.wait_for(events.WorkerJoined)
    assert session.log == ["readmit worker 1"], "it never was taken out"
    assert bench.membership.is_present(1, generation=1)
    assert not bench.queue.lanes._scheduler._idle.is_paused(1)
    # From then on it is like any other worker.
    session.start("worker", 1)
    assert bench.membership.report_lost(1, 1, "restarted")
    bench.wait_for(events.WorkerReadmitted)


def test_a_late_worker_is_taken_in_once_for_two_coordinators(
    make: Callable[..., _Bench],
) -> None:
    session = FakeSession(num_workers=2)
    session.leave_out("worker", 1)
    benches = [make(session), make(session)]
    session.start("worker", 1)
    for bench in benches:
        bench.wait_for(events.WorkerJoined)
    assert session.log == ["readmit worker 1"]


def test_all_that_are_lost_are_delisted_before_any_is_readmitted(
    make: Callable[..., _Bench],
) -> None:
    session = FakeSession(num_workers=3)
    bench = make(session)
    session.kill("worker", 0)
    assert bench.membership.report_lost(0, 0, "refused")
    assert bench.membership.report_lost(2, 0, "refused")
    bench.wait_for(events.WorkerReadmitted)
    assert session.log == [
        "delist worker 0",
        "delist worker 2",
        "readmit worker 2",
    ]
    assert bench.membership.absent == (0,)


def test_goes_on_when_a_change_fails(make: Callable[..., _Bench]) -> None:
    class Stubborn(FakeSession):
        num_refusals = 1

        def readmit(self, task: Any, *, unless_listed: bool = False) -> None:
            if self.num_refusals:
                self.num_refusals -= 1
                raise RuntimeError("not now")
            super().readmit(task, unless_listed=unless_listed)

    bench = make(Stubborn())
    assert bench.membership.report_lost(0, 0, "restarted")
    bench.wait_for(events.WorkerReadmitted)
    assert bench.membership.is_present(0, 1)


def test_lost_again_at_once_stays_paused(
    make: Callable[..., _Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = FakeSession()
    bench = make(session)
    changes: list[str] = []
    for name in ("pause", "resume"):
        change = getattr(bench.queue.lanes, name)

        def note(
            worker_index: int,
            name: str = name,
            change: Callable[[int], Any] = change,
        ) -> Any:
            changes.append(name)
            return change(worker_index)

        monkeypatch.setattr(bench.queue.lanes, name, note)

    def lose_again(event: events.Event) -> None:
        if isinstance(event, events.WorkerReadmitted):
            session.kill("worker", 0)
            assert bench.membership.report_lost(0, 1, "dead again")

    bench.events.subscribe(lose_again)
    assert bench.membership.report_lost(0, 0, "restarted")
    bench.wait_for(events.WorkerLost, 2)
    assert bench.thread.stop(_TIMEOUT_SECONDS)
    assert bench.membership.absent == (0,)
    assert changes == ["pause", "resume", "pause"]


def test_asks_the_silent_while_a_change_is_held_up(
    make: Callable[..., _Bench],
) -> None:
    class Hanging(FakeSession):
        def delist(self, task: Any) -> frozenset[Task]:
            raise errors.TaskLostError("held up by worker 0")

    session = Hanging(num_workers=2)
    session.kill("worker", 0)
    busy = _Busy()
    bench = make(session, {1: busy})
    assert bench.membership.report_lost(0, 0, "silent")
    session.kill("worker", 1)
    assert busy.abandoned.wait(_TIMEOUT_SECONDS)
    assert bench.membership.absent == (0, 1)


def test_silent_worker_is_given_up(make: Callable[..., _Bench]) -> None:
    session = FakeSession(num_workers=2)
    session.kill("worker", 1)
    busy, well = _Busy(), _Busy()
    bench = make(session, {0: well, 1: busy})
    bench.wait_for(events.WorkerLost)
    assert busy.abandoned.wait(_TIMEOUT_SECONDS)
    assert not well.abandoned.is_set()
    assert bench.membership.absent == (1,)


def test_ps_that_died_with_a_worker(make: Callable[..., _Bench]) -> None:
    session = FakeSession(num_workers=2)
    bench = make(session)
    bench.queue.put(Closure(lambda: None))
    session.kill("worker", 0)
    session.kill("ps", 0)
    assert bench.membership.report_lost(0, 0, "refused")
    bench.wait_for(events.ParameterServerLost)
    with pytest.raises(errors.ParameterServerLostError):
        bench.queue.join()


def test_others_that_were_taken_out_are_lost_too(
    make: Callable[..., _Bench],
) -> None:
    class Thorough(FakeSession):
        def delist(self, task: Task) -> frozenset[Task]:
            return super().delist(task) | {self.cluster.workers[2]}

    session = Thorough(num_workers=3)
    for index in (1, 2):
        session.kill("worker", index)
    bench = make(session)
    assert bench.membership.report_lost(1, 0, "refused")
    bench.wait_for(events.WorkerLost, 2)
    assert bench.membership.absent == (1, 2)


def test_idle_worker_is_asked_from_time_to_time(
    make: Callable[..., _Bench],
) -> None:
    session = FakeSession(num_workers=2)
    session.kill("worker", 1)
    bench = make(session, {0: _Busy(since=None), 1: _Busy(since=None)})
    bench.wait_for(events.WorkerLost)
    assert bench.membership.absent == (1,)


def test_a_worker_that_has_just_begun_something_is_not_asked(
    make: Callable[..., _Bench],
) -> None:
    session = FakeSession(num_workers=2)
    for index in (0, 1):
        session.kill("worker", index)
    just_now = time.monotonic() + 1000.0
    bench = make(session, {0: _Busy(just_now), 1: _Busy(since=None)})
    bench.wait_for(events.WorkerLost)
    assert bench.membership.absent == (1,)


def test_silent_ps_that_no_closure_waits_for(
    make: Callable[..., _Bench],
) -> None:
    session = FakeSession(num_workers=2, num_ps=2)
    session.kill("ps", 1)
    watched = {0: _Busy(since=None), 1: _Busy(since=None)}
    bench = make(session, watched)
    bench.wait_for(events.ParameterServerLost)
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not session.broken:
        assert time.monotonic() < deadline
    assert set(session.broken) == {session.cluster.parameter_servers[1]}
    # Closures that do not need it go on.
    bench.queue.put(Closure(lambda: None))
    assert not any(each.abandoned.is_set() for each in watched.values())


def test_silent_ps_that_no_closure_waits_for_is_brought_back(
    make: Callable[..., _Bench],
) -> None:
    session = FakeSession(num_workers=1, num_ps=2)
    session.kill("ps", 1)
    bench = make(session, {0: _Busy(since=None)}, _Restorer())
    bench.wait_for(events.WaitingForParameterServer)
    session.start("ps", 1)
    bench.wait_for(events.ParameterServerRecovered)
    assert not session.broken


def test_silent_ps_ends_the_round(make: Callable[..., _Bench]) -> None:
    session = FakeSession(num_workers=2, num_ps=2)
    session.kill("ps", 1)
    watched = {0: _Busy(), 1: _Busy(since=None)}
    bench = make(session, watched)
    bench.wait_for(events.ParameterServerLost)
    for each in watched.values():
        assert each.abandoned.wait(_TIMEOUT_SECONDS)
    with pytest.raises(errors.ParameterServerLostError, match="server 1"):
        bench.queue.put(Closure(lambda: None))


class _Restorer:
    """Restores at once."""

    def can_restore(self) -> bool:
        return True

    def restore(self, tasks: Sequence[Any]) -> tuple[str, int]:
        return "a checkpoint", len(tasks)


@pytest.mark.parametrize("stale_seconds", [0.0, 60.0])
def test_a_worker_with_a_stale_function_is_added_anew_in_time(
    make: Callable[..., _Bench], stale_seconds: float
) -> None:
    """Its failures are excused, because a ps was away a moment ago."""
    session = FakeSession(num_workers=2, num_ps=2)
    watched = {index: _Busy(since=None) for index in range(2)}
    bench = make(session, watched, _Restorer(), stale_seconds=stale_seconds)
    lost = failures.Failure(failures.FailureKind.SUSPECT_PS, (), (1,))
    session.start("ps", 1)
    assert bench.examiner.examine(lost, 0, 0, thoroughly=False) is None
    bench.wait_for(events.ParameterServerRecovered)
    assert bench.membership.excuses_failures
    stale = failures.Failure(
        failures.FailureKind.TRANSIENT, (1,), function_is_stale=True
    )
    assert bench.examiner.examine(stale, 1, 0, thoroughly=False) is None
    if stale_seconds:
        assert bench.membership.is_present(1, 0)
    else:
        bench.wait_for(events.WorkerReadmitted)
        assert bench.membership.is_present(1, 1)


def test_a_call_that_a_lost_ps_left_hanging_is_given_up(
    make: Callable[..., _Bench],
) -> None:
    session = FakeSession(num_workers=3, num_ps=2)
    watched = {index: _Busy(since=None) for index in range(3)}
    watched[1].needs, watched[2].needs = (1,), (0,)
    bench = make(session, watched, _Restorer(), hanging_seconds=0.0)
    failure = failures.Failure(failures.FailureKind.SUSPECT_PS, (), (1,))
    session.start("ps", 1)
    assert bench.examiner.examine(failure, 0, 0, thoroughly=False) is None
    bench.wait_for(events.ParameterServerRecovered)
    assert watched[1].abandoned.wait(_TIMEOUT_SECONDS)
    bench.wait_for(events.WorkerReadmitted)
    assert bench.membership.is_present(1, 1)
    for index in (0, 2):
        assert watched[index].asked.wait(_TIMEOUT_SECONDS)
        assert not watched[index].abandoned.is_set()
        assert bench.membership.is_present(index, 0)


def test_a_worker_with_an_abandoned_call_is_given_up_once_its_ps_is_back(
    make: Callable[..., _Bench],
) -> None:
    session = FakeSession(num_workers=3, num_ps=2)
    watched = {index: _Busy(since=None) for index in range(3)}
    watched[1].abandoned_needs, watched[2].abandoned_needs = (1,), (0,)
    # Calls that are not abandoned have this long to fail by themselves.
    bench = make(session, watched, _Restorer(), hanging_seconds=1000.0)
    failure = failures.Failure(failures.FailureKind.SUSPECT_PS, (), (1,))
    session.start("ps", 1)
    assert bench.examiner.examine(failure, 0, 0, thoroughly=False) is None
    bench.wait_for(events.WorkerReadmitted)
    assert bench.membership.is_present(1, 1)
    for index in (0, 2):
        assert bench.membership.is_present(index, 0)


def test_examine_ignores_old_news(make: Callable[..., _Bench]) -> None:
    session = FakeSession()
    bench = make(session)
    failure = failures.Failure(failures.FailureKind.SUSPECT_PS, (0,), (0,))
    session.start("ps", 0)
    assert bench.examiner.examine(failure, 0, 7, thoroughly=True) is None
    assert isinstance(
        bench.examiner.examine(failure, 0, 0, thoroughly=False),
        errors.ParameterServerLostError,
    )


def test_a_call_that_does_not_end_when_cancelled_is_given_up(
    make: Callable[..., _Bench], caplog: pytest.LogCaptureFixture
) -> None:
    stuck, fresh = _Busy(since=None), _Busy(since=None)
    stuck.cancelled_at = 0.0
    fresh.cancelled_at = math.inf
    bench = make(FakeSession(num_workers=2), {0: stuck, 1: fresh})
    assert stuck.abandoned.wait(_TIMEOUT_SECONDS)
    assert not fresh.abandoned.is_set()
    # The thread logs the line after it abandons the call.
    assert bench.thread.stop(_TIMEOUT_SECONDS)
    assert "Worker 0 still runs 1 functions" in caplog.text


class _Ignored:
    """A cancellation that calls of the chief ignore."""

    started_at = None

    def __init__(self, *calls: str) -> None:
        self.calls = calls
        self.is_asked_often = threading.Event()
        self._num_questions = 0

    def ignored_by(self) -> frozenset[Any]:
        self._num_questions += 1
        if self._num_questions > 3:
            self.is_asked_often.set()
        return frozenset(self.calls)


def test_a_call_of_the_chief_that_does_not_end_loses_its_connections(
    make: Callable[..., _Bench], caplog: pytest.LogCaptureFixture
) -> None:
    session = FakeSession(num_workers=1, num_ps=2)
    cancellation: Any = _Ignored("a call")
    session.connection.cancellation = cancellation
    bench = make(session, hanging_seconds=0.0)
    assert cancellation.is_asked_often.wait(_TIMEOUT_SECONDS)
    assert bench.thread.stop(_TIMEOUT_SECONDS)
    # Once only, though the call was seen several times.
    assert session.broken == list(session.cluster.parameter_servers)
    assert "1 functions on the chief still run" in caplog.text


class _Recovery:
    """A recovery of a ps that ends when a test says so."""

    is_under_way = False

    def can_begin(self) -> bool:
        return True

    def begin(self, task: Task) -> None:
        self.is_under_way = True


class _AsksWhoIsThere:
    """Listener that asks the membership, whose lock must be free."""

    def __init__(self) -> None:
        self.membership: Any = None
        # The state of each closure, and who was absent when it was told.
        self.told: list[tuple[ClosureState, tuple[int, ...]]] = []

    def set_outcome(
        self, state: ClosureState, outcome: Any, worker_index: int | None
    ) -> None:
        asking = threading.Thread(
            target=lambda: self.told.append((state, self.membership.absent))
        )
        asking.start()
        asking.join(_TIMEOUT_SECONDS)
        assert not asking.is_alive()


def test_what_waits_for_a_lost_worker_alone_is_cancelled() -> None:
    listener = _AsksWhoIsThere()
    session = FakeSession(num_workers=2)
    queue = ClosureQueue(SharedLedger(capacity=10))
    membership = listener.membership = Membership(
        session, queue.lanes, Counters(), events.Events()
    )
    for bound_to in (0, 1, None, 1):
        queue.put(Closure(lambda: None, listener, bound_to))
    assert membership.report_lost(1, 0, "dead")
    assert listener.told == [(ClosureState.CANCELLED, (1,))] * 2
    assert queue.cancel_queued() == 2


def test_what_waits_for_one_worker_alone_is_cancelled_with_a_ps() -> None:
    listener = _AsksWhoIsThere()
    recovery: Any = _Recovery()
    session = FakeSession(num_workers=2)
    queue = ClosureQueue(SharedLedger(capacity=10))
    membership = listener.membership = Membership(
        session, queue.lanes, Counters(), events.Events(), recovery
    )
    for bound_to in (0, 1, None):
        queue.put(Closure(lambda: None, listener, bound_to))
    assert membership.begin_recovery(session.cluster.parameter_servers[0])
    assert listener.told == [(ClosureState.CANCELLED, ())] * 2
    assert queue.cancel_queued() == 1


def test_a_recovery_ends_only_when_no_ps_is_lost() -> None:
    recovery: Any = _Recovery()
    session = FakeSession(num_workers=2)
    queue = ClosureQueue(SharedLedger(capacity=10))
    membership = Membership(
        session, queue.lanes, Counters(), events.Events(), recovery
    )
    membership.report_lost(1, 0, "dead")
    assert membership.begin_recovery(session.cluster.parameter_servers[0])
    membership.end_recovery()
    assert queue.lanes._scheduler._idle.is_paused(0), (
        "another ps was lost in the meantime"
    )
    recovery.is_under_way = False
    membership.end_recovery()
    assert not queue.lanes._scheduler._idle.is_paused(0)
    assert queue.lanes._scheduler._idle.is_paused(1), "it is lost itself"
