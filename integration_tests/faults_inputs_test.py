"""What is read, and what is counted, when a worker dies while it reads."""

import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

_ROWS_OF_SPLIT = 64
_SPLITS = 60
_ROWS = _SPLITS * _ROWS_OF_SPLIT
_BATCH = 4
_X = np.random.default_rng(0).normal(size=(_ROWS, 2)).astype("float32")


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=1) as cluster:
        yield cluster


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


class Kill(keras.callbacks.Callback):
    """Kills a worker after some batches, and starts it again after more."""

    def __init__(self, cluster: tfps.LocalCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._is_down = False

    def _act(self, batch: int) -> None:
        if batch == 40:
            self._cluster.kill("worker", 0)
            self._is_down = True
        if batch == 300:
            self.start()

    def start(self) -> None:
        """Has all workers run again."""
        if self._is_down:
            self._cluster.start("worker", 0, wait=True)
            self._is_down = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._act(batch)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._act(batch)

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._act(batch)


class Seen(keras.metrics.Metric):
    """How often each row was seen; the targets are the rows' numbers."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.counts = self.add_weight(
            shape=(_ROWS,), initializer="zeros", name="counts"
        )

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        ids = tf.cast(tf.reshape(y_true, [-1]), tf.int64)
        self.counts.assign_add(
            tf.math.unsorted_segment_sum(
                tf.ones_like(ids, tf.float32), ids, _ROWS
            )
        )

    def result(self) -> Any:
        return keras.ops.sum(self.counts)


def _model(strategy: tfps.ParameterServerStrategy) -> tuple[Any, Seen]:
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        seen = Seen()
        model.compile("sgd", lambda y, p: 0.0 * p[:, 0], metrics=[seen])
    return model, seen


def _of_split(number: tf.Tensor) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices(
        (_X, np.arange(_ROWS, dtype="int64"))
    )
    begin = number * _ROWS_OF_SPLIT
    return rows.skip(begin).take(_ROWS_OF_SPLIT).batch(_BATCH)


def _creator(visitation: str) -> tfps.DatasetCreator:
    return tfps.DatasetCreator(
        _of_split, splits=range(_SPLITS), visitation=visitation
    )


def test_a_worker_that_dies_does_not_change_what_evaluate_counts(
    cluster: tfps.LocalCluster, strategy: tfps.ParameterServerStrategy
) -> None:
    model, seen = _model(strategy)
    kill = Kill(cluster)
    model.evaluate(_creator("at_least_once"), callbacks=[kill], verbose=0)
    np.testing.assert_array_equal(np.asarray(seen.counts), 1)
    kill.start()


def test_a_worker_that_dies_leaves_the_rest_of_its_split_out_at_most_once(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, seen = _model(strategy)
    kill = Kill(cluster)
    with caplog.at_level(logging.WARNING, "tfps_plugin"):
        model.evaluate(_creator("at_most_once"), callbacks=[kill], verbose=0)
    counts = np.asarray(seen.counts)
    assert counts.max() == 1
    left_out = np.unique(np.flatnonzero(counts == 0) // _ROWS_OF_SPLIT)
    warned = {
        int(record.args[1].split(",")[0].removeprefix("split "))  # type: ignore[index,union-attr]
        for record in caplog.records
        if "left out" in record.getMessage()
    }
    assert 1 <= len(warned) <= 2, "what its lanes were reading"
    assert set(left_out) <= warned
    kill.start()


def test_a_worker_that_dies_does_not_change_predictions(
    cluster: tfps.LocalCluster, strategy: tfps.ParameterServerStrategy
) -> None:
    model, _ = _model(strategy)
    kill = Kill(cluster)
    found = model.predict(_X, batch_size=_BATCH, callbacks=[kill], verbose=0)
    kernel, bias = model.get_weights()
    np.testing.assert_allclose(found, _X @ kernel + bias, rtol=1e-4, atol=1e-6)
    kill.start()


@pytest.mark.parametrize("reads", ["workers", "chief"])
def test_a_worker_that_dies_loses_no_step_of_fit(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    reads: str,
) -> None:
    model, _ = _model(strategy)
    kill = Kill(cluster)
    data: Any = _creator("at_least_once")
    if reads == "chief":
        data = tf.data.Dataset.from_tensor_slices((_X, np.arange(_ROWS))).batch(
            _BATCH
        )
    model.fit(data, callbacks=[kill], verbose=0)
    num_batches = _ROWS // _BATCH
    most_again = _ROWS_OF_SPLIT // _BATCH + 2 * 10
    iterations = int(model.optimizer.iterations)
    assert num_batches <= iterations <= num_batches + most_again
    kill.start()
