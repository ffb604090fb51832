"""Tests of a coordinator that begins before a worker has answered."""

import threading
from collections.abc import Iterator

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy
from tfps_plugin.inputs.per_worker_values import PerWorkerValues
from tfps_plugin.monitoring import events

_TIMEOUT_SECONDS = 30.0


@pytest.fixture
def session() -> FakeSession:
    """Connects only to worker 0 of two."""
    made = FakeSession(num_workers=2)
    made.leave_out("worker", 1)
    return made


@pytest.fixture
def coordinator(session: FakeSession) -> Iterator[ClusterCoordinator]:
    made = ClusterCoordinator(
        FakeStrategy(session), no_worker_timeout_seconds=0.1
    )
    yield made
    made.close()


def _worker_index(value: object = None) -> int:
    del value
    return dispatch_context.required().worker_index


def test_it_builds_what_it_needs_when_it_joins(
    session: FakeSession, coordinator: ClusterCoordinator
) -> None:
    built: list[int] = []
    own = PerWorkerValues(lambda context: built.append(context.worker_index))
    values = [
        coordinator.schedule(_worker_index, args=(own,)) for _ in range(100)
    ]
    assert set(coordinator.fetch(values)) == {0}
    assert built == [0]
    assert list(coordinator.absent_workers) == [1]

    seen: list[events.Event] = []
    has_joined = threading.Event()

    def note(event: events.Event) -> None:
        seen.append(event)
        has_joined.set()

    coordinator.events.subscribe(note)
    session.start("worker", 1)
    assert has_joined.wait(_TIMEOUT_SECONDS)
    meet = threading.Barrier(coordinator.num_lanes)

    def of_every_lane(value: object) -> int:
        meet.wait(_TIMEOUT_SECONDS)
        return _worker_index(value)

    values = [
        coordinator.schedule(of_every_lane, args=(own,))
        for _ in range(coordinator.num_lanes)
    ]
    assert set(coordinator.fetch(values)) == {0, 1}
    assert built == [0, 1]
    assert not coordinator.absent_workers
    (event,) = seen
    assert isinstance(event, events.WorkerJoined)
    assert (event.worker_index, event.address) == (1, "worker-1:1")


def test_the_others_are_lost_before_it_joins(
    session: FakeSession, coordinator: ClusterCoordinator
) -> None:
    session.kill("worker", 0)

    def step() -> None:
        raise tf.errors.UnavailableError(
            None,
            None,
            "Additional GRPC error information from remote target "
            "/job:worker/replica:0/task:0 while calling Enqueue",
        )

    coordinator.schedule(step)
    with pytest.raises(errors.WorkerLostError) as caught:
        coordinator.join()
    assert "worker 0 at worker-0:1: refused" in str(caught.value)
    assert "worker 1 at worker-1:1: refused" in str(caught.value)
