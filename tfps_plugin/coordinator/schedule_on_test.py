"""Tests of functions that only one worker may run."""

import functools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy
from tfps_plugin.inputs.per_worker_values import PerWorkerValues
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


def _where() -> int:
    return dispatch_context.required().worker_index


def test_it_runs_on_that_worker(coordinator: ClusterCoordinator) -> None:
    own = PerWorkerValues(lambda context: 100 + context.worker_index)

    def step(value: int, offset: int) -> tuple[int, int]:
        return _where(), value + offset

    values = [
        coordinator.schedule_on(
            number % 2, step, args=(own,), kwargs={"offset": 1000}
        )
        for number in range(40)
    ]
    assert coordinator.fetch(values) == [(0, 1100), (1, 1101)] * 20
    coordinator.join()


@pytest.mark.parametrize("worker_index", [-1, 2, 1.0, "1", None, True])
def test_what_is_no_worker_is_refused(
    coordinator: ClusterCoordinator, worker_index: Any
) -> None:
    with pytest.raises(ValueError, match="from 0 to 1, because") as caught:
        coordinator.schedule_on(worker_index, print)
    assert f"Received: worker_index={worker_index!r}" in str(caught.value)


def test_it_is_refused_inside_a_scheduled_function(
    coordinator: ClusterCoordinator,
) -> None:
    coordinator.schedule_on(1, lambda: coordinator.schedule_on(0, print))
    with pytest.raises(errors.UnsupportedError, match="schedule_on"):
        coordinator.join()


def test_its_error_cancels_all_others(coordinator: ClusterCoordinator) -> None:
    both_run = threading.Barrier(2)

    def fail() -> None:
        both_run.wait(_TIMEOUT_SECONDS)
        raise ZeroDivisionError

    for worker_index in (0, 1):
        coordinator.schedule_on(worker_index, fail)
    with pytest.raises(ZeroDivisionError):
        coordinator.join()
    coordinator.join()
    assert coordinator.schedule_on(1, _where).fetch(_TIMEOUT_SECONDS) == 1


def test_it_is_cancelled_when_its_worker_dies(
    session: FakeSession, coordinator: ClusterCoordinator
) -> None:
    seen: list[events.Event] = []
    is_back = threading.Event()

    def note(event: events.Event) -> None:
        seen.append(event)
        if isinstance(event, events.WorkerReadmitted):
            is_back.set()

    coordinator.events.subscribe(note)
    session.kill("worker", 1)
    ran_on: list[int] = []
    both_run = threading.Barrier(2)

    def step() -> None:
        ran_on.append(_where())
        both_run.wait(_TIMEOUT_SECONDS)
        raise tf.errors.UnavailableError(
            None,
            None,
            "Additional GRPC error information from remote target "
            "/job:worker/replica:0/task:1 while calling Enqueue",
        )

    values = [coordinator.schedule_on(1, step) for _ in range(5)]
    ended: list[RemoteValue] = []
    for value in values:
        value.on_ended(functools.partial(ended.append, value))
    coordinator.join()
    assert len(ended) == len(values)
    for value in values:
        with pytest.raises(errors.ClosureCancelledError, match="schedule_on"):
            coordinator.fetch(value)
    assert ran_on == [1, 1], "those that waited did not run"

    # Nobody waits for a worker that is away.
    too_late = coordinator.schedule_on(1, step)
    assert isinstance(too_late.error, errors.ClosureCancelledError)
    assert coordinator.done()
    session.start("worker", 1)
    assert is_back.wait(_TIMEOUT_SECONDS)
    again = coordinator.schedule_on(1, _where)
    assert again.fetch(_TIMEOUT_SECONDS) == 1
    assert ran_on == [1, 1]
    assert not any(isinstance(event, events.ClosureRetried) for event in seen)


def test_it_is_cancelled_while_its_worker_is_late() -> None:
    session = FakeSession(num_workers=2)
    session.leave_out("worker", 1)
    coordinator = ClusterCoordinator(FakeStrategy(session))
    try:
        value = coordinator.schedule_on(1, _where)
        assert isinstance(value.error, errors.ClosureCancelledError)
        coordinator.join()
        assert coordinator.schedule_on(0, _where).fetch(_TIMEOUT_SECONDS) == 0
    finally:
        coordinator.close()
