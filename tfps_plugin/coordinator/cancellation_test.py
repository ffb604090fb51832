"""Tests that an error, or the end of a coordinator, cancels running calls."""

import threading
from collections.abc import Iterator

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator import worker_pool
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy

_TIMEOUT_SECONDS = 30.0


@pytest.fixture
def strategy() -> FakeStrategy:
    return FakeStrategy(FakeSession(num_workers=2, num_ps=1))


@pytest.fixture
def coordinator(strategy: FakeStrategy) -> Iterator[ClusterCoordinator]:
    made = ClusterCoordinator(strategy)
    yield made
    made.close()


@pytest.mark.parametrize("is_plain", [False, True])
def test_error_of_a_step_ends_what_runs_for_ever(
    coordinator: ClusterCoordinator, is_plain: bool
) -> None:
    empty = tf.queue.FIFOQueue(1, [tf.int32], shapes=[[]])
    begun = threading.Event()

    @tf.function
    def wait() -> tf.Tensor:
        return empty.dequeue()

    wait_traced = wait.get_concrete_function()

    def wait_plainly() -> tf.Tensor:
        begun.set()
        return wait_traced()

    def fail() -> None:
        if is_plain:
            begun.wait(_TIMEOUT_SECONDS)
        raise ZeroDivisionError("in the step")

    for _ in range(2):
        values = [
            coordinator.schedule(wait_plainly if is_plain else wait)
            for _ in range(coordinator.num_lanes - 1)
        ]
        coordinator.schedule(fail)
        with pytest.raises(ZeroDivisionError):
            coordinator.join()
        for value in values:
            with pytest.raises(errors.ClosureCancelledError):
                value.fetch(_TIMEOUT_SECONDS)
        begun.clear()
    # Every lane is free, and its calls are no longer cancelled.
    barrier = threading.Barrier(coordinator.num_lanes)
    double = tf.function(lambda x: 2 * x).get_concrete_function(tf.constant(1))

    def meet() -> tf.Tensor:
        barrier.wait(_TIMEOUT_SECONDS)
        return double(tf.constant(3))

    met = [coordinator.schedule(meet) for _ in range(coordinator.num_lanes)]
    assert coordinator.fetch(met) == [6] * coordinator.num_lanes
    coordinator.join()


def test_close_ends_what_runs_for_ever(
    strategy: FakeStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "_CLOSE_TIMEOUT_SECONDS", 0.1)
    coordinator = ClusterCoordinator(strategy)
    empty = tf.queue.FIFOQueue(1, [tf.int32], shapes=[[]])
    value = coordinator.schedule(tf.function(lambda: empty.dequeue()))
    while not coordinator._pool.queue._ledger.num_running:
        threading.Event().wait(0.001)
    coordinator.close()
    with pytest.raises(errors.ClosureCancelledError):
        value.fetch(_TIMEOUT_SECONDS)
