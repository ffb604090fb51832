"""Tests of synchronous training with one worker: the numbers of one process.

It makes all steps, in the order of its input. So a state may pass from batch to
batch.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_optimizers
import shared_streams
import shared_sync_parity as parity
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, consistency=tfps.Sync()
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def _assert_same(ours: keras.Model, alone: keras.Model) -> None:
    """Compares weights, and the states that the next batch would get."""
    pairs = zip(
        [*ours.get_weights(), *ours.layers[0].states],
        [*alone.get_weights(), *alone.layers[0].states],
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(one),
            keras.ops.convert_to_numpy(other),
            rtol=0,
            atol=1e-5,
        )


@pytest.mark.parametrize("who_reads", ["chief", "worker"])
def test_fit_carries_states_from_batch_to_batch(
    strategy: tfps.ParameterServerStrategy, who_reads: str
) -> None:
    def fit(model: keras.Model, *, by_workers: bool) -> list[float]:
        data = shared_streams.data(by_workers=by_workers)
        history = model.fit(**data, epochs=2, verbose=0).history
        losses: list[float] = history["loss"]
        return losses

    alone = shared_streams.model()
    expected = fit(alone, by_workers=False)
    with strategy.scope():
        ours = shared_streams.model()
    actual = fit(ours, by_workers=who_reads == "worker")
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    _assert_same(ours, alone)


def test_a_custom_loop_carries_states_from_batch_to_batch(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def trainer(model: keras.Model) -> Any:
        def train(values: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                error = model(values, training=True) - targets
                loss = tf.reduce_mean(tf.square(error))
            weights = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        return train

    alone = shared_streams.model()
    train_alone = trainer(alone)
    expected = [float(train_alone(*each)) for each in shared_streams.dataset()]
    num_steps = len(expected)
    with strategy.scope():
        ours = shared_streams.model()
    train = trainer(ours)

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(train, args=next(iterator))

    coordinator = tfps.ClusterCoordinator(strategy)
    iterator = iter(
        coordinator.create_per_worker_dataset(shared_streams.dataset)
    )
    losses = [
        coordinator.schedule(step, args=(iterator,)) for _ in range(num_steps)
    ]
    coordinator.join()
    actual = [float(each.fetch().values[0]) for each in losses]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    _assert_same(ours, alone)


_SAVED_EVERY, _CRASHED = 5, 13


class _CrashError(Exception):
    """The end of a chief."""


class _CrashInTheSecondEpoch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._epoch == 1 and batch == _CRASHED:
            raise _CrashError


@pytest.mark.parametrize(
    "name", ["Adam, accumulation, overwriting", "LossScaleOptimizer"]
)
def test_a_crash_inside_an_epoch_changes_no_number(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path, name: str
) -> None:
    """Neither of weights and slots, nor of the metrics of that epoch."""
    data = parity.Data(1)
    source = {
        "x": data.ids.reshape(-1, 3),
        "y": data.targets.reshape(-1, 1),
        "batch_size": parity.BATCH,
        "shuffle": False,
        "epochs": 2,
        "verbose": 0,
    }

    alone = parity.new_model(shared_optimizers.summing(parity.CASES[name]()))
    losses = alone.fit(**source).history["loss"]
    expected = parity.as_arrays(alone, losses[1:])

    def fit(*callbacks: Any) -> parity.Trained:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            parity.cut,
            consistency=tfps.Sync(),
            sparse_update="exact",
        )
        backup = tfps.callbacks.BackupAndRestore(
            tmp_path, save_freq=_SAVED_EVERY
        )
        try:
            with strategy.scope():
                model = parity.new_model(parity.CASES[name]())
            history = model.fit(
                **source, callbacks=[backup, *callbacks]
            ).history
            return parity.as_arrays(model, history["loss"])
        finally:
            tfps.ClusterCoordinator(strategy).close()

    with pytest.raises(_CrashError):
        fit(_CrashInTheSecondEpoch())
    parity.assert_same(fit(), expected)
