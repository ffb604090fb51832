"""Tests that fit() goes on when a worker dies in the middle of it."""

import logging
import signal
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_training
import tensorflow as tf
from shared_training import STEPS_A_CALL
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.monitoring import events

# Each test loses or delays tasks, and takes long.
pytestmark = pytest.mark.sample(cases=2, group="faults_fit")

_STEPS = 300


@pytest.fixture
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=1) as cluster:
        yield cluster


def _dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    x = np.random.default_rng(context.input_pipeline_id).normal(size=(512, 8))
    x = x.astype("float32")
    return (
        tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1)))
        .repeat()
        .batch(16)
    )


def _model(strategy: tfps.ParameterServerStrategy) -> keras.Model:
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    return model


class _At(keras.callbacks.Callback):
    """Runs an action at the end of one batch of one epoch."""

    def __init__(self, epoch: int, batch: int, action: Any) -> None:
        super().__init__()
        self._when = (epoch, batch)
        self._action = action
        self._epoch = -1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self._epoch, batch) == self._when:
            self._action()


def _assert_few_again(
    model: keras.Model,
    coordinator: tfps.ClusterCoordinator,
    num_workers_lost: int,
) -> int:
    """Checks that only steps that a lost worker had begun are repeated."""
    again = coordinator.counters.value("steps_again")
    most_calls = num_workers_lost * coordinator.in_flight_limits.most
    assert again <= most_calls * STEPS_A_CALL
    assert 0 <= int(model.optimizer.iterations) - 3 * _STEPS <= again
    return again


@pytest.mark.parametrize("new_address", [False, True])
def test_a_worker_is_killed_and_comes_back(
    cluster: tfps.LocalCluster,
    caplog: pytest.LogCaptureFixture,
    new_address: bool,
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = tfps.ClusterCoordinator(strategy)
    model = _model(strategy)
    caplog.set_level(logging.INFO, "tfps_plugin")
    absent = []
    seen = Seen(coordinator)
    history = model.fit(
        tfps.DatasetCreator(_dataset),
        epochs=3,
        steps_per_epoch=_STEPS,
        verbose=0,
        callbacks=[
            _At(0, _STEPS // 2, lambda: cluster.kill("worker", 0)),
            _At(
                1,
                _STEPS // 2,
                lambda: absent.append(coordinator.absent_workers),
            ),
            _At(
                2,
                0,
                lambda: cluster.start(
                    "worker", 0, wait=True, new_address=new_address
                ),
            ),
        ],
    ).history
    again = _assert_few_again(model, coordinator, num_workers_lost=1)
    assert ("begun a second time" in caplog.text) == (again > 0)
    assert absent == [(0,)]
    shared_training.assert_went_on(model, history, 3 * _STEPS)
    assert "Worker 0" in caplog.text
    # The worker that came back takes part again.
    seen.wait_for(events.WorkerReadmitted)
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=40, verbose=0)
    seen.wait_for_all_workers()
    coordinator.close()


def test_a_worker_that_hangs_does_not_hold_up_the_rest(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = tfps.ClusterCoordinator(strategy)
    model = _model(strategy)
    seen = Seen(coordinator)
    done_at_loss: list[int] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.WorkerLost):
            done_at_loss.append(coordinator.counters.value("steps_done"))

    seen.on_event = note
    process = cluster.process("worker", 0)
    try:
        # It is silent until everything is over, including the reads of metrics
        # and weights.
        history = model.fit(
            tfps.DatasetCreator(_dataset),
            epochs=3,
            steps_per_epoch=_STEPS,
            verbose=0,
            callbacks=[
                _At(
                    0,
                    _STEPS // 2,
                    lambda: process.send_signal(signal.SIGSTOP),
                )
            ],
        ).history
        assert coordinator.absent_workers == (0,)
        shared_training.assert_went_on(model, history, 3 * _STEPS)
        _assert_few_again(model, coordinator, num_workers_lost=1)
    finally:
        process.send_signal(signal.SIGCONT)
    # At the loss, the other worker had done everything that it did not hold.
    assert len(done_at_loss) == 1
    held = coordinator.in_flight_limits.most * STEPS_A_CALL
    assert done_at_loss[0] >= _STEPS - held
    seen.wait_for(events.WorkerReadmitted)
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=40, verbose=0)
    seen.wait_for_all_workers()
    coordinator.close()


def test_a_worker_that_is_preempted(cluster: tfps.LocalCluster) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = tfps.ClusterCoordinator(strategy)
    model = _model(strategy)
    seen = Seen(coordinator)
    process = cluster.process("worker", 0)

    def preempt() -> None:
        # Cluster managers do this; the worker ends what it runs, and itself.
        process.send_signal(signal.SIGTERM)
        assert process.wait(30.0) == 0
        cluster.start("worker", 0)

    history = model.fit(
        tfps.DatasetCreator(_dataset),
        epochs=3,
        steps_per_epoch=_STEPS,
        verbose=0,
        callbacks=[_At(0, _STEPS // 2, preempt)],
    ).history
    shared_training.assert_went_on(model, history, 3 * _STEPS)
    assert int(model.optimizer.iterations) == 3 * _STEPS
    assert coordinator.counters.value("steps_again") == 0
    assert not seen.of(events.WorkerLost)
    assert [e.worker_index for e in seen.of(events.WorkerLeft)] == [0]
    assert seen.wait_for(events.WorkerReadmitted).worker_index == 0
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=40, verbose=0)
    seen.wait_for_all_workers()
    coordinator.close()


def test_all_workers_die_in_fit_and_come_back(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = tfps.ClusterCoordinator(strategy)
    model = _model(strategy)
    seen = Seen(coordinator)
    started: list[int] = []

    def kill_all() -> None:
        for index in (0, 1):
            cluster.kill("worker", index)

    def bring_back(event: events.Event) -> None:
        if isinstance(event, events.NoWorkerLeft) and not started:
            for index in (0, 1):
                started.append(index)
                cluster.start("worker", index)

    seen.on_event = bring_back
    history = model.fit(
        tfps.DatasetCreator(_dataset),
        epochs=3,
        steps_per_epoch=_STEPS,
        verbose=0,
        callbacks=[_At(1, _STEPS // 2, kill_all)],
    ).history
    assert started == [0, 1]
    shared_training.assert_went_on(model, history, 3 * _STEPS)
    _assert_few_again(model, coordinator, num_workers_lost=2)
    seen.wait_for(events.WorkerReadmitted, 2)
    seen.wait_for_all_workers()
    coordinator.close()


def _slow(dataset: tf.data.Dataset, seconds: float) -> tf.data.Dataset:
    """Returns the dataset with a delay before each element."""
    variant = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        sleep_microseconds=tf.constant(int(seconds * 1e6), tf.int64),
        output_types=[tf.int32, tf.int32],
        output_shapes=[[None], [None]],
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def test_a_slow_worker_does_not_hold_up_the_others(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = tfps.ClusterCoordinator(strategy)
    seen = Seen(coordinator)

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        worker = context.input_pipeline_id
        numbers = tf.data.Dataset.from_tensors((worker, worker)).repeat()
        numbers = numbers.batch(1)
        return _slow(numbers, 0.4) if worker == 0 else numbers

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((), dtype="int32"),
                keras.layers.Embedding(2, 1, "zeros"),
            ]
        )
        # The row of a worker grows by 1 with each of its steps.
        model.compile(
            keras.optimizers.SGD(1.0),
            lambda _, prediction: -prediction[:, 0],
        )
    model.fit(
        tfps.DatasetCreator(dataset_fn), steps_per_epoch=_STEPS, verbose=0
    )
    (table,) = model.get_weights()
    slow, fast = table[:, 0]
    assert slow + fast == _STEPS
    # It takes several steps at a time, and the epoch waits for their end.
    assert 1 <= slow <= _STEPS / 5
    for kind in (events.WorkerLost, events.ClosureRetried):
        assert not seen.of(kind)
    coordinator.close()


def test_a_ps_that_dies_is_named(cluster: tfps.LocalCluster) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    model = _model(strategy)
    with pytest.raises(errors.ParameterServerLostError) as raised:
        model.fit(
            tfps.DatasetCreator(_dataset),
            epochs=3,
            steps_per_epoch=_STEPS,
            verbose=0,
            callbacks=[_At(0, 50, lambda: cluster.kill("ps", 0))],
        )
    address = cluster.cluster_spec.task("ps", 0).address
    tfps.ClusterCoordinator(strategy).close()
    for part in ("Parameter server 0", address, "last checkpoint"):
        assert part in str(raised.value)
