"""fit() goes on when a worker dies in the middle of it."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.monitoring import events

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
    """Does something at the end of one batch of one epoch."""

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


def test_a_worker_is_killed_and_comes_back(
    cluster: tfps.LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = tfps.ClusterCoordinator(strategy)
    model = _model(strategy)
    caplog.set_level(logging.INFO, "tfps_plugin")
    absent = []
    back = threading.Event()

    def note(event: events.Event) -> None:
        if isinstance(event, events.WorkerReadmitted):
            back.set()

    coordinator.events.subscribe(note)
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
            _At(2, 0, lambda: cluster.start("worker", 0, wait=True)),
        ],
    ).history
    # At least once: what the dead worker had begun is run again.
    iterations = int(model.optimizer.iterations)
    assert 3 * _STEPS <= iterations <= 3 * _STEPS + 2 * 10
    assert absent == [(0,)]
    assert history["loss"][2] < history["loss"][0]
    assert all(np.isfinite(w.numpy()).all() for w in model.weights)
    assert "Worker 0" in caplog.text
    # The worker that came back takes part again.
    assert back.wait(60.0)
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=40, verbose=0)
    assert coordinator.absent_workers == ()
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
