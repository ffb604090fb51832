"""Tests of following a cluster resolver, on a cluster without processes."""

import threading
from collections.abc import Callable
from collections.abc import Iterator

import pytest

from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.elastic.follower import Follower
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
    follower = Follower(interval_seconds=0.01)
    follower.start(made)
    yield made
    follower.stop(_TIMEOUT_SECONDS)
    made.close()


def _waiter(
    coordinator: ClusterCoordinator, kind: type[events.Event]
) -> Callable[[], bool]:
    seen = threading.Event()

    def note(event: events.Event) -> None:
        if isinstance(event, kind):
            seen.set()

    coordinator.events.subscribe(note)
    return lambda: seen.wait(_TIMEOUT_SECONDS)


def test_workers_come_and_go_as_described(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    workers = session.cluster.worker_addresses
    ps = session.cluster.ps_addresses
    joined = _waiter(coordinator, events.WorkerJoined)
    session.starts_with_addition = True
    session.described = ClusterSpec((*workers, "new:1"), ps)
    assert joined()
    assert list(coordinator.worker_indices) == [0, 1, 2]
    left = _waiter(coordinator, events.WorkerLeft)
    session.described = ClusterSpec(workers, ps)
    assert left()
    assert list(coordinator.worker_indices) == [0, 1]


def test_what_cannot_be_is_told_of(
    coordinator: ClusterCoordinator,
    session: FakeSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers = session.cluster.worker_addresses
    joined = _waiter(coordinator, events.WorkerJoined)
    session.starts_with_addition = True
    session.described = ClusterSpec((*workers, "new:1"), ("ps-0:1", "ps-1:1"))
    assert joined()
    assert "2 parameter servers" in caplog.text
