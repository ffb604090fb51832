"""Tests of workers that are told to end, on a cluster without processes."""

import logging
import threading
from collections.abc import Iterator

import pytest

from tfps_plugin.cluster.serving.messages import Leaving
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy
from tfps_plugin.monitoring import events

_TIMEOUT_SECONDS = 30.0


@pytest.fixture
def session() -> FakeSession:
    return FakeSession(num_workers=2, num_ps=1)


@pytest.fixture
def coordinator(session: FakeSession) -> Iterator[ClusterCoordinator]:
    made = ClusterCoordinator(FakeStrategy(session))
    yield made
    made.close()


def test_a_worker_ends_what_it_runs_and_comes_back(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    left, is_back = threading.Event(), threading.Event()

    def note(event: events.Event) -> None:
        if isinstance(event, events.WorkerLeft):
            assert not event.for_good
            left.set()
        if isinstance(event, events.WorkerReadmitted):
            is_back.set()

    def run() -> str:
        begun.set()
        assert go_on.wait(_TIMEOUT_SECONDS)
        return "done"

    coordinator.events.subscribe(note)
    value = coordinator.schedule_on(1, run)
    assert begun.wait(_TIMEOUT_SECONDS)
    # That of a worker that the cluster does not have is ignored.
    session.messages += [Leaving("", 7, 20.0), Leaving("", 1, 20.0)]
    go_on.set()
    assert left.wait(_TIMEOUT_SECONDS)
    assert value.fetch() == "done"
    assert list(coordinator.absent_workers) == [1]
    assert list(coordinator.worker_indices) == [0, 1]
    assert not is_back.is_set(), "it is about to end"
    session.start("worker", 1)
    assert is_back.wait(_TIMEOUT_SECONDS)
    assert coordinator.counters.value("workers_lost") == 0


def test_a_worker_that_takes_too_long_is_told_of(
    coordinator: ClusterCoordinator,
    session: FakeSession,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        assert go_on.wait(_TIMEOUT_SECONDS)

    value = coordinator.schedule_on(1, run)
    assert begun.wait(_TIMEOUT_SECONDS)
    told = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has not ended what it runs" in record.getMessage():
                told.set()

    listener = Listener()
    logger = logging.getLogger("tfps_plugin")
    logger.addHandler(listener)
    session.messages.append(Leaving("", 1, 0.1))
    try:
        assert told.wait(_TIMEOUT_SECONDS)
    finally:
        logger.removeHandler(listener)
    go_on.set()
    value.get()
    # It gets nothing new: it is about to end.
    results = [coordinator.schedule(lambda: None) for _ in range(4)]
    coordinator.fetch(results)
    coordinator.join()
