"""Tests of the numbers of synchronous training that loses a task.

The reference is a process that trains with the batches of all workers as one,
and without the part of the lost worker from the step on in which it was lost.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_cluster
import shared_optimizers
import shared_spans
import shared_sync_parity as parity
import tensorflow as tf
from shared_gate import Gate
from shared_losses import LostWorker
from shared_losses import StoppedWorker
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin._compat.runtime import tensorflow_functions
from tfps_plugin.monitoring import events

pytestmark = pytest.mark.sample(cases=2, group="faults_sync")

_WORKERS = 3
_LOST = 2
# The step in which the lost worker is held up, and one in a later span.
_HELD, _LATER = 6, 18
_PATIENCE_SECONDS = 3.0
# What has to survive a loss: sums that the chief carries between parameter
# servers, steps without an update, averages, a scale, several optimizers.
_NAMES = [
    "SGD, global_clipnorm",
    "Adagrad, accumulation",
    "Adam, accumulation, overwriting",
    "LossScaleOptimizer, accumulation",
    *[name for name in ["MultiOptimizer, norms"] if name in parity.CASES],
]


@pytest.fixture(scope="module")
def living_cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=_WORKERS, num_ps=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(living_cluster: tfps.LocalCluster) -> tfps.LocalCluster:
    """Returns the cluster of the module, with all its tasks."""
    return shared_cluster.with_all_tasks(living_cluster)


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    earlier = shared_spans.queues()
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        parity.cut,
        consistency=tfps.Sync(),
        sparse_update="exact",
    )
    tfps.ClusterCoordinator(strategy, patience_seconds=_PATIENCE_SECONDS)
    yield strategy
    try:
        shared_spans.assert_nothing_is_left(earlier)
    finally:
        tfps.ClusterCoordinator(strategy).close()


def _model(optimizer: Any, gate: Gate | None = None) -> keras.Model:
    """Returns a model whose targets have a second column, for the gate."""

    def loss(target: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
        if gate is not None:
            is_held = tf.reduce_any(target[:, 1] > 0)
            with tf.control_dependencies([gate.passing(is_held)]):
                predicted = tf.identity(predicted)
        return tf.square(predicted[:, 0] - target[:, 0])

    model = parity.new_model(optimizer)
    model.compile(optimizer, loss)
    return model


def _targets(held: int | None = None) -> np.ndarray:
    """Returns targets by worker, step and example, with a second column."""
    targets = parity.Data(_WORKERS).targets
    targets = np.concatenate([targets, np.zeros_like(targets)], axis=-1)
    if held is not None:
        targets[_LOST, held, :, 1] = 1.0
    return targets


def _alone(name: str, num_workers: list[int]) -> parity.Trained:
    """Returns what one process makes of steps with so many workers each."""
    data, targets = parity.Data(_WORKERS), _targets()
    model = _model(shared_optimizers.summing(parity.CASES[name]()))
    for step, number in enumerate(num_workers):
        ids, y = (
            np.concatenate(part[:number, step]) for part in (data.ids, targets)
        )
        model.train_on_batch(ids, y)
    # As at the end of `fit`: averages take the place of weights.
    model.optimizer.finalize_variable_values(model.trainable_variables)
    return parity.as_arrays(model, [])


@pytest.fixture
def num_traces(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns a function that counts what TensorFlow has traced so far."""
    roll_call = tensorflow_functions._roll_call
    wait = roll_call.wait
    traces: list[None] = []

    def noted() -> None:
        traces.append(None)
        wait()

    # Each function waits here before TensorFlow sends it to the tasks.
    monkeypatch.setattr(roll_call, "wait", noted)
    return lambda: len(traces)


@pytest.mark.parametrize("loss", [LostWorker, StoppedWorker])
@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.sample(cases=2)
def test_steps_without_a_lost_worker_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gate: Gate,
    name: str,
    loss: type[LostWorker],
) -> None:
    data, targets = parity.Data(_WORKERS), _targets(_HELD)
    seen = Seen(tfps.ClusterCoordinator(strategy))
    with strategy.scope():
        model = _model(parity.CASES[name](), gate)
    how = loss(cluster, gate, _LOST)
    gate.once_reached(how.happen)
    try:
        model.fit(
            tfps.DatasetCreator(lambda c: data.of_worker(c, targets)),
            steps_per_epoch=parity.STEPS,
            verbose=0,
        )
    finally:
        how.end()
    gate.assert_acted()
    assert [e.worker_index for e in seen.of(events.WorkerLost)] == [_LOST]
    tolerance = parity.TOLERANCES.get(name, parity.TOLERANCE)
    found = parity.as_arrays(model, [])
    without = [_WORKERS] * _HELD + [_LOST] * (parity.STEPS - _HELD)
    parity.assert_same(found, _alone(name, without), tolerance)
    # It would be seen if the worker had counted in one step more.
    longer = [_WORKERS] * (_HELD + 1) + [_LOST] * (parity.STEPS - _HELD - 1)
    assert parity.largest_difference(found, _alone(name, longer)) > tolerance
    seen.wait_for_all_workers()


@pytest.mark.parametrize("who_reads", ["chief", "workers"])
def test_nothing_is_traced_when_a_worker_is_lost(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gate: Gate,
    num_traces: Callable[[], int],
    who_reads: str,
) -> None:
    data, targets = parity.Data(_WORKERS), _targets(_HELD)
    seen = Seen(tfps.ClusterCoordinator(strategy))
    with strategy.scope():
        model = _model(parity.CASES["SGD, global_clipnorm"](), gate)
    how = LostWorker(cluster, gate, _LOST)
    found: list[int] = []

    def lose() -> None:
        found.append(num_traces())
        how.happen()

    def look() -> None:
        assert seen.of(events.WorkerLost)
        found.append(num_traces())

    gate.once_reached(lose)
    source: Any = data.of_all(targets)
    if who_reads == "workers":
        source = tfps.DatasetCreator(lambda c: data.of_worker(c, targets))
    try:
        model.fit(
            source,
            steps_per_epoch=parity.STEPS,
            verbose=0,
            callbacks=[At({_LATER: look})],
        )
    finally:
        how.end()
    gate.assert_acted()
    before, after = found
    assert 0 < before == after
    seen.wait_for_all_workers()
