"""Tests of a second strategy on a cluster where a worker hangs."""

import signal
import time
from collections.abc import Iterator

import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_TIMEOUT_SECONDS = 60.0
_HANGING = 1


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    """Yields a strategy under which every worker has had work."""
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


@pytest.fixture
def hang(
    cluster: tfps.LocalCluster, strategy: tfps.ParameterServerStrategy
) -> Iterator[None]:
    process = cluster.process("worker", _HANGING)
    process.send_signal(signal.SIGSTOP)
    yield
    process.send_signal(signal.SIGCONT)
    # The worker has recovered, for the tests that follow.
    (_, device) = strategy.worker_devices
    with tf.device(device):
        assert int(tf.constant(1) + 1) == 2


@pytest.fixture
def work(strategy: tfps.ParameterServerStrategy) -> list[tf.Tensor]:
    """Returns tensors on every worker, which TensorFlow frees at the end."""
    tensors = []
    for device in strategy.worker_devices:
        with tf.device(device):
            tensors.append(tf.constant(1.0) + 1.0)
    return tensors


@pytest.mark.parametrize("timeout_seconds", [3.0, 14.0])
@pytest.mark.parametrize("min_workers", [None, 1])
def test_a_second_strategy_waits_for_no_worker_that_hangs(
    cluster: tfps.LocalCluster,
    work: list[tf.Tensor],
    hang: None,
    caplog: pytest.LogCaptureFixture,
    timeout_seconds: float,
    min_workers: int | None,
) -> None:
    begun = time.monotonic()
    newer = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        startup=tfps.StartupOptions(
            timeout_seconds=timeout_seconds, min_workers=min_workers
        ),
    )
    assert time.monotonic() - begun < 3.0
    address = cluster.cluster_spec.task("worker", _HANGING).address
    assert f"does not wait for worker {_HANGING} at {address}" in caplog.text
    assert "earlier strategy" not in caplog.text
    assert newer.session.listed == frozenset(cluster.cluster_spec.serving_tasks)
