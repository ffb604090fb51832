"""Tests of rows read and counted when a worker dies while it reads."""

import logging
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.sample(cases=4, group="faults_inputs")

# More rows than are read before the kill: the worker is in its first split.
_ROWS_OF_SPLIT = 384
_SPLITS = 7
_ROWS = _SPLITS * _ROWS_OF_SPLIT
_ROWS_OF_WORKER = _ROWS // 2
_BATCH = 4
# Steps that a dying worker was running: a closure of each of its two lanes.
_STEPS_IN_FLIGHT = 2 * 10
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
    # A task that is still starting would be missing in the next test, too.
    cluster.wait_until_ready()


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
        """Starts the worker again if it is down."""
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
    """Counts how often each row is seen; targets are the rows' numbers."""

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


def _counting_model(strategy: tfps.ParameterServerStrategy) -> keras.Model:
    """Returns a model that adds one to a row of its table at each training."""
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((), dtype="int64"),
                keras.layers.Embedding(_ROWS, 1, "zeros"),
            ]
        )
        # The loss is the mean over a batch.
        model.compile(
            keras.optimizers.SGD(float(_BATCH)), lambda y, p: -p[:, 0]
        )
    return model


def _times_trained(model: keras.Model) -> np.ndarray:
    """Returns how often the gradient of each row was applied."""
    return model.layers[0].embeddings.numpy()[:, 0]


def _numbers(begin: Any, size: Any) -> tf.data.Dataset:
    """Returns the numbers of some rows, as inputs and as targets."""
    numbers = tf.data.Dataset.range(_ROWS).skip(begin).take(size).batch(_BATCH)
    return tf.data.Dataset.zip((numbers, numbers))


def _numbers_of_split(number: tf.Tensor) -> tf.data.Dataset:
    return _numbers(number * _ROWS_OF_SPLIT, _ROWS_OF_SPLIT)


def _numbers_of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return _numbers(
        context.input_pipeline_id * _ROWS_OF_WORKER, _ROWS_OF_WORKER
    )


# Inputs of fit(), by the reader.
_FIT_INPUTS: dict[str, Callable[[str], Any]] = {
    "splits": lambda visitation: tfps.DatasetCreator(
        _numbers_of_split, splits=range(_SPLITS), visitation=visitation
    ),
    "shares": lambda visitation: tfps.DatasetCreator(
        _numbers_of_worker, visitation=visitation
    ),
    "chief": lambda visitation: _numbers(0, _ROWS),
}


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
    _assert_only_warned_splits_are_left_out(counts, caplog)
    kill.start()


def _assert_only_warned_splits_are_left_out(
    counts: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    warned = {
        int(record.args[1].split(",")[0].removeprefix("split "))  # type: ignore[index,union-attr]
        for record in caplog.records
        if "left out" in record.getMessage()
    }
    assert 1 <= len(warned) <= 2, "what its lanes were reading"
    left_out = np.unique(np.flatnonzero(counts == 0) // _ROWS_OF_SPLIT)
    assert set(left_out) <= warned


def test_a_worker_that_dies_does_not_change_predictions(
    cluster: tfps.LocalCluster, strategy: tfps.ParameterServerStrategy
) -> None:
    model, _ = _model(strategy)
    kill = Kill(cluster)
    found = model.predict(_X, batch_size=_BATCH, callbacks=[kill], verbose=0)
    kernel, bias = model.get_weights()
    np.testing.assert_allclose(found, _X @ kernel + bias, rtol=1e-4, atol=1e-6)
    kill.start()


@pytest.mark.parametrize(
    ("reads", "visitation"),
    [
        ("splits", "at_least_once"),
        ("splits", "at_most_once"),
        ("shares", "at_least_once"),
        ("chief", "at_least_once"),
    ],
)
def test_without_failures_fit_trains_on_every_row_once(
    strategy: tfps.ParameterServerStrategy, reads: str, visitation: str
) -> None:
    model = _counting_model(strategy)
    model.fit(_FIT_INPUTS[reads](visitation), verbose=0)
    np.testing.assert_array_equal(_times_trained(model), 1)
    assert int(model.optimizer.iterations) == _ROWS // _BATCH


# Number of rows that may be trained on twice: all of its own input that the
# dying worker had read; if the chief reads, the batches that it had received.
_MOST_ROWS_AGAIN = {
    "splits": 2 * _ROWS_OF_SPLIT,
    "shares": _ROWS_OF_WORKER,
    "chief": _STEPS_IN_FLIGHT * _BATCH,
}


@pytest.mark.parametrize("reads", _FIT_INPUTS)
def test_a_worker_that_dies_loses_no_step_of_fit(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    reads: str,
) -> None:
    model = _counting_model(strategy)
    kill = Kill(cluster)
    data = _FIT_INPUTS[reads]("at_least_once")
    model.fit(data, callbacks=[kill], verbose=0)
    counters = tfps.ClusterCoordinator(strategy).counters
    assert counters.value("workers_lost") == 1
    counts = _times_trained(model)
    assert set(counts) <= {1, 2}
    again = np.flatnonzero(counts == 2)
    assert len(again) <= _MOST_ROWS_AGAIN[reads]
    if reads == "splits":
        assert len(np.unique(again // _ROWS_OF_SPLIT)) <= 2
    elif reads == "shares":
        assert len(np.unique(again // _ROWS_OF_WORKER)) <= 1
    else:
        assert len(again) <= counters.value("steps_again") * _BATCH
    # Counting a step and applying its gradient are separate: an interrupted
    # step may have done only one of them.
    iterations = int(model.optimizer.iterations)
    assert iterations >= _ROWS // _BATCH
    assert abs(iterations - counts.sum() / _BATCH) <= 2
    kill.start()


def test_a_worker_that_dies_has_fit_train_on_no_row_twice_at_most_once(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = _counting_model(strategy)
    kill = Kill(cluster)
    data = _FIT_INPUTS["splits"]("at_most_once")
    with caplog.at_level(logging.WARNING, "tfps_plugin"):
        model.fit(data, callbacks=[kill], verbose=0)
    counts = _times_trained(model)
    assert set(counts) <= {0, 1}
    _assert_only_warned_splits_are_left_out(counts, caplog)
    kill.start()
