"""Tests of the rates that a coordinator tells."""

import threading
from collections.abc import Iterator

import pytest
import tensorflow as tf

from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy


@pytest.fixture
def coordinator() -> Iterator[ClusterCoordinator]:
    made = ClusterCoordinator(FakeStrategy(FakeSession(num_workers=2)))
    yield made
    made.close()


def test_each_call_of_a_tf_function_is_a_step_of_its_worker(
    coordinator: ClusterCoordinator,
) -> None:
    @tf.function
    def my_step(x: tf.Tensor) -> tf.Tensor:
        return 2.0 * x

    assert coordinator.worker_rates() == []
    for number in range(10):
        for worker_index in coordinator.worker_indices:
            coordinator.schedule_on(
                worker_index, my_step, args=(tf.constant(float(number)),)
            )
            # Nobody knows what that does.
            coordinator.schedule_on(worker_index, lambda: None)
    coordinator.join()
    rates = coordinator.worker_rates()
    assert [rate.worker_index for rate in rates] == [0, 1]
    for rate in rates:
        assert rate.work == "my_step"
        # The first call of each of two lanes does not count.
        assert 8 <= rate.num_steps <= 9
        assert rate.steps_per_second > 0
        assert rate.input_share is None
        assert rate.num_retries == 0


def test_the_network_is_measured_beside_the_program(
    coordinator: ClusterCoordinator,
) -> None:
    probes = coordinator._pool._probe.measure([1], [0, 1], 30.0)
    assert sorted(probes) == [0, 1]
    for seconds in probes.values():
        (of_ps,) = seconds.values()
        assert 0 < of_ps < 30
    coordinator.join()


def test_an_error_of_the_program_is_left_to_it(
    coordinator: ClusterCoordinator,
) -> None:
    def fail() -> None:
        raise ValueError("the error of the program")

    has_ended = threading.Event()
    coordinator.schedule(fail).on_ended(has_ended.set)
    assert has_ended.wait(30.0)
    assert coordinator._pool._probe.measure([0], [0, 1], 30.0) == {}
    with pytest.raises(ValueError, match="of the program"):
        coordinator.join()
