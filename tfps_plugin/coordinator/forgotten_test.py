"""Tests that an unreachable coordinator ends its threads."""

import gc
import threading
import time
import weakref
from typing import Any

import pytest

from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.members import membership_thread
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate

_TIMEOUT_SECONDS = 30.0


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_thread, "_WATCH_INTERVAL_SECONDS", 0.01)


def _await_threads(expected: set[threading.Thread]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    for thread in set(threading.enumerate()) - expected:
        thread.join(deadline - time.monotonic())
    assert set(threading.enumerate()) <= expected


def test_its_threads_end_when_nothing_refers_to_it() -> None:
    before = set(threading.enumerate())
    session = FakeSession()
    for number in range(3):
        strategy = FakeStrategy(session)
        coordinator = ClusterCoordinator(strategy)
        value = coordinator.schedule(lambda number=number: number)
        assert value.fetch(_TIMEOUT_SECONDS) == number
        assert set(threading.enumerate()) > before
        reference = weakref.ref(coordinator)
        del strategy, coordinator, value
        gc.collect()
        assert reference() is None
        _await_threads(before)
    gate = session.connection.part(RecoveryGate)
    assert not gate.wait(), "nobody is asked any more"


def test_what_was_scheduled_comes_to_its_end_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(threading.enumerate())
    strategy = FakeStrategy(FakeSession(num_workers=1))
    coordinator = ClusterCoordinator(strategy)
    go_on = threading.Event()
    values = [
        coordinator.schedule(lambda: go_on.wait(_TIMEOUT_SECONDS))
        for _ in range(5)
    ]
    looked = threading.Semaphore(0)
    original = ClosureQueue.has_work

    def has_work(queue: ClosureQueue) -> bool:
        looked.release()
        return bool(original.__get__(queue))

    monkeypatch.setattr(ClosureQueue, "has_work", property(has_work))
    del strategy, coordinator
    gc.collect()
    for _ in range(3):
        assert looked.acquire(timeout=_TIMEOUT_SECONDS)
    go_on.set()
    assert all(value.fetch(_TIMEOUT_SECONDS) for value in values)
    _await_threads(before)


class _Work:
    """A job that runs beside a coordinator, on its own thread."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._is_over.wait)

    def start(self, coordinator: ClusterCoordinator) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        self._is_over.set()
        self._thread.join(timeout_seconds)


def test_what_runs_beside_it_ends_with_it() -> None:
    before = set(threading.enumerate())
    strategy: Any = FakeStrategy(FakeSession())
    work = _Work()
    strategy.background_work = [work]
    coordinator = ClusterCoordinator(strategy)
    assert set(threading.enumerate()) > before
    del strategy, coordinator
    gc.collect()
    try:
        _await_threads(before)
    finally:
        work.stop(_TIMEOUT_SECONDS)
