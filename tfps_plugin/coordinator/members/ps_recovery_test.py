"""Tests that lost ps are awaited, and restored once all are back."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator.members import inspector as inspector_module
from tfps_plugin.coordinator.members.inspector import Inspector
from tfps_plugin.coordinator.members.ps_recovery import PsRecovery
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector_module, "_PS_PROBE_INTERVAL_SECONDS", 0.0)


class _Restorer:
    """Records what to restore, and fails when told to."""

    def __init__(self) -> None:
        self.restored: list[tuple[int, ...]] = []
        self.failures: list[BaseException] = []
        self.on_restore: Any = lambda: None

    def can_restore(self) -> bool:
        return True

    def restore(self, tasks: Sequence[Any]) -> tuple[str, int]:
        self.on_restore()
        if self.failures:
            raise self.failures.pop(0)
        self.restored.append(tuple(task.index for task in tasks))
        return "a checkpoint", 3


class _Bench:
    """A recovery of two ps, and its surroundings."""

    def __init__(self, timeout_seconds: float = 60.0) -> None:
        self.session = FakeSession(num_workers=1, num_ps=2)
        self.restorer = _Restorer()
        self.seen: list[Any] = []
        board = events.Events()
        board.subscribe(self.seen.append)
        counters = Counters()
        self.recovery = PsRecovery(
            self.session,
            Inspector(self.session, counters, board),
            self.restorer,
            counters,
            board,
            timeout_seconds=timeout_seconds,
        )

    def lose(self, *indices: int) -> None:
        for index in indices:
            self.session.kill("ps", index)
            self.recovery.begin(self.session.cluster.parameter_servers[index])

    def advance(self, times: int = 3) -> Any:
        errors_ = [self.recovery.advance() for _ in range(times)]
        return next((e for e in errors_ if e is not None), None)

    def events_of(self, kind: type) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kind)]


def test_nothing_is_done_while_nobody_is_away() -> None:
    bench = _Bench()
    assert bench.advance() is None
    assert not bench.recovery.is_under_way
    assert bench.session.log == []


def test_a_ps_is_waited_for_and_restored() -> None:
    bench = _Bench()
    bench.lose(1)
    assert bench.advance() is None
    assert bench.recovery.is_under_way
    assert bench.session.log == ["delist ps 1"], "once"
    assert len(bench.events_of(events.WaitingForParameterServer)) == 1
    bench.session.start("ps", 1)
    assert bench.advance() is None
    assert not bench.recovery.is_under_way
    assert bench.restorer.restored == [(1,)]
    (event,) = bench.events_of(events.ParameterServerRecovered)
    assert (event.ps_index, event.source) == (1, "a checkpoint")
    assert bench.recovery.excuses_failures, "workers have to find it again"


def test_all_are_back_before_any_is_restored() -> None:
    bench = _Bench()
    bench.lose(0, 1)
    bench.session.start("ps", 0)
    bench.advance()
    assert bench.restorer.restored == []
    bench.session.start("ps", 1)
    bench.advance()
    assert [sorted(each) for each in bench.restorer.restored] == [[0, 1]]


def test_another_that_dies_meanwhile_is_found() -> None:
    bench = _Bench()
    bench.lose(1)
    bench.session.kill("ps", 0)
    bench.advance()
    bench.session.start("ps", 0)
    bench.session.start("ps", 1)
    bench.advance()
    assert [sorted(each) for each in bench.restorer.restored] == [[0, 1]]


def test_one_that_dies_while_it_is_restored_is_waited_for_again() -> None:
    bench = _Bench()
    bench.lose(1)
    bench.session.start("ps", 1)
    bench.restorer.failures = [
        tf.errors.UnavailableError(
            None, None, "remote target /job:ps/replica:0/task:1: refused"
        )
    ]
    bench.restorer.on_restore = lambda: bench.session.kill("ps", 1)
    assert bench.advance() is None
    assert bench.recovery.is_under_way
    bench.restorer.on_restore = lambda: None
    bench.session.start("ps", 1)
    assert bench.advance() is None
    assert bench.restorer.restored == [(1,)]


def test_one_that_is_lost_again_as_others_are_restored_is_waited_for() -> None:
    bench = _Bench()
    bench.lose(1)
    bench.session.start("ps", 1)
    bench.restorer.on_restore = lambda: bench.lose(0)
    assert bench.advance() is None
    assert bench.restorer.restored == [(1,)]
    assert bench.recovery.is_under_way
    bench.restorer.on_restore = lambda: None
    bench.session.start("ps", 0)
    assert bench.advance() is None
    assert bench.restorer.restored == [(1,), (0,)]
    assert not bench.recovery.is_under_way


def _broken_connection() -> BaseException:
    return tf.errors.UnavailableError(
        None, None, "remote target /job:ps/replica:0/task:1: Socket closed"
    )


def test_a_connection_that_breaks_while_it_is_restored() -> None:
    bench = _Bench()
    bench.lose(1)
    bench.session.start("ps", 1)
    bench.restorer.failures = [_broken_connection() for _ in range(4)]
    assert bench.advance(times=10) is None
    assert bench.restorer.restored == [(1,)]
    assert bench.session.log == ["delist ps 1", "readmit ps 1"] * 5


def test_connections_that_always_break_are_the_users_error() -> None:
    bench = _Bench()
    bench.lose(1)
    bench.session.start("ps", 1)
    bench.restorer.failures = [_broken_connection() for _ in range(9)]
    error = bench.advance(times=10)
    assert isinstance(error, errors.ParameterServerLostError)
    assert "Socket closed" in str(error)
    assert not bench.recovery.is_under_way


def test_one_that_stays_away_is_given_up() -> None:
    bench = _Bench(timeout_seconds=0.0)
    bench.lose(1)
    error = bench.advance()
    assert isinstance(error, errors.ParameterServerLostError)
    assert not bench.recovery.is_under_way
    assert bench.restorer.restored == []


def test_values_that_cannot_be_restored_are_the_users_error() -> None:
    bench = _Bench()
    bench.lose(1)
    bench.session.start("ps", 1)
    cause = errors.CheckpointUnreadableError("all damaged")
    bench.restorer.failures = [cause]
    error = bench.advance()
    assert isinstance(error, errors.ParameterServerLostError)
    assert error.__cause__ is cause
    assert "all damaged" in str(error)
    assert not bench.recovery.is_under_way


@pytest.mark.parametrize("gives_up", [False, True])
def test_whoever_waits_is_told_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, gives_up: bool
) -> None:
    bench = _Bench(timeout_seconds=0.0 if gives_up else 60.0)
    bench.lose(1)
    waits = threading.Event()
    wait = bench.recovery._ended.wait

    def noted_wait(seconds: float) -> bool:
        waits.set()
        return wait(seconds)

    monkeypatch.setattr(bench.recovery._ended, "wait", noted_wait)
    results: list[bool] = []
    thread = threading.Thread(
        target=lambda: results.append(bench.recovery.wait())
    )
    thread.start()
    assert waits.wait(20.0)
    if not gives_up:
        bench.session.start("ps", 1)
    bench.advance()
    thread.join(20.0)
    assert results == [not gives_up]
