"""Tests that counts of eight workers and thousands of steps are exact."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

_WORKERS = 8
_BATCH = 8
_STEPS = 2000
_FEATURES = 3
# All examples are equal, so that the moving statistics are known after any
# number of steps, in any order.
_INPUT = np.array([1.0, 2.0, -4.0], "float32")
_MOMENTUM = 0.999


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=_WORKERS, num_ps=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    # Its threads live as long as the strategy, longer than one test.
    coordinator = tfps.ClusterCoordinator(strategy)
    yield strategy
    coordinator.close()


def _dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    targets = np.arange(_BATCH, dtype="float32")[:, None] % 2
    inputs = np.tile(_INPUT, (_BATCH, 1))
    return tf.data.Dataset.from_tensors((inputs, targets)).repeat()


class Counting(keras.layers.Layer):
    """Layer that counts its calls, in the ways that users write."""

    def build(self, shape: Any) -> None:
        def counter(dtype: str, shape: tuple[int, ...] = ()) -> Any:
            return self.add_weight(
                shape=shape, dtype=dtype, initializer="zeros", trainable=False
            )

        self.assigned = counter("int32")
        self.added = counter("int64")
        self.subtracted = counter("float32")
        self.examples = counter("float32", (_FEATURES,))
        self.doubled = counter("float32", (1000,))
        self.most = counter("float32")

    def call(self, x: Any) -> Any:
        self.assigned.assign(self.assigned + 1)
        self.added.assign_add(1)
        self.subtracted.assign(self.subtracted - 1.0)
        self.examples.assign(
            self.examples + keras.ops.sum(keras.ops.ones_like(x), axis=0)
        )
        # This is exact in binary, and not an addition.
        self.doubled.assign((self.doubled * 2.0 + 2.0) / 2.0)
        self.most.assign(keras.ops.maximum(self.most, keras.ops.max(x)))
        return x


class Seen(keras.metrics.Metric):
    """A user's metric that assigns sums."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.assigned = self.add_variable((), "zeros", dtype="int32")
        self.added = self.add_variable((2,), "zeros")

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        size = keras.ops.shape(y_true)[0]
        self.assigned.assign(self.assigned + size)
        self.added.assign_add(keras.ops.cast([size, 1], "float32"))

    def result(self) -> Any:
        return keras.ops.cast(self.assigned, "float32")


def _model() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((_FEATURES,)),
            Counting(),
            keras.layers.BatchNormalization(momentum=_MOMENTUM),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(4, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.001),
        "binary_crossentropy",
        metrics=[
            keras.metrics.AUC(num_thresholds=11, name="auc"),
            keras.metrics.TruePositives(name="positives", thresholds=0.0),
            keras.metrics.FalsePositives(name="negatives", thresholds=0.0),
            keras.metrics.MeanIoU(2, sparse_y_pred=False, name="iou"),
            Seen(),
        ],
    )
    return model


@pytest.fixture(scope="module")
def model(strategy: tfps.ParameterServerStrategy) -> keras.Model:
    """Returns a shared model: preparing its functions takes seconds."""
    with strategy.scope():
        return _model()


def _metric(model: keras.Model, name: str) -> Any:
    return next(m for m in model.metrics[1].metrics if m.name == name)


def _check_metrics(model: keras.Model, steps: int) -> None:
    examples = steps * _BATCH
    assert float(model.metrics[0].count.numpy()) == examples
    auc = _metric(model, "auc")
    positive = auc.true_positives.numpy() + auc.false_negatives.numpy()
    negative = auc.true_negatives.numpy() + auc.false_positives.numpy()
    np.testing.assert_array_equal(positive, examples / 2)
    np.testing.assert_array_equal(negative, examples / 2)
    assert float(_metric(model, "positives").result()) == examples / 2
    assert float(_metric(model, "negatives").result()) == examples / 2
    assert _metric(model, "iou").total_cm.numpy().sum() == examples
    seen = _metric(model, "seen")
    assert int(seen.assigned.numpy()) == examples
    assert seen.added.numpy().tolist() == [examples, steps]


@pytest.mark.timeout(600)
def test_everything_is_counted_exactly(
    model: keras.Model, strategy: tfps.ParameterServerStrategy
) -> None:
    history = model.fit(
        tfps.DatasetCreator(_dataset), steps_per_epoch=_STEPS, verbose=0
    ).history
    assert int(model.optimizer.iterations.numpy()) == _STEPS
    _check_metrics(model, _STEPS)
    assert history["seen"] == [_STEPS * _BATCH]
    # Sixteen threads ran at once, and none made another fail.
    counters = tfps.ClusterCoordinator(strategy).counters
    assert counters.value("closures_retried") == 0

    counting = model.layers[0]
    assert int(counting.assigned.numpy()) == _STEPS
    assert int(counting.added.numpy()) == _STEPS
    assert float(counting.subtracted.numpy()) == -_STEPS
    np.testing.assert_array_equal(counting.examples.numpy(), _STEPS * _BATCH)
    np.testing.assert_array_equal(counting.doubled.numpy(), _STEPS)
    assert float(counting.most.numpy()) == 2.0

    kept = _MOMENTUM**_STEPS
    normalization = model.layers[1]
    np.testing.assert_allclose(
        normalization.moving_mean.numpy(), _INPUT * (1 - kept), rtol=1e-4
    )
    # Batches do not vary; one update lost would be an error of 1e-3.
    np.testing.assert_allclose(
        normalization.moving_variance.numpy(), kept, rtol=5e-4
    )
    for weight in (*model.weights, *model.optimizer.variables):
        assert np.isfinite(np.asarray(weight.numpy())).all(), weight.path

    # The evaluation does not include counts of the training.
    model.evaluate(tfps.DatasetCreator(_dataset), steps=100, verbose=0)
    _check_metrics(model, 100)
    assert int(model.optimizer.iterations.numpy()) == _STEPS


@pytest.mark.timeout(600)
def test_nothing_is_left_over_between_epochs_and_evaluations(
    model: keras.Model,
) -> None:
    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            # These are metrics of the validation, which is over.
            _check_metrics(self.model, 17)
            assert logs["seen"] == 50 * _BATCH
            assert logs["val_seen"] == 17 * _BATCH
            # This runs on the chief, which has a copy of its own.
            x = np.tile(_INPUT, (3 * _BATCH, 1))
            self.model.predict(x, verbose=0)
            _check_metrics(self.model, 17)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            y = np.arange(3 * _BATCH, dtype="float32")[:, None] % 2
            x = np.tile(_INPUT, (3 * _BATCH, 1))
            self.model.evaluate(x, y, batch_size=_BATCH, verbose=0)
            _check_metrics(self.model, 3)
            self.model.reset_metrics()

    steps_before = int(model.optimizer.iterations.numpy())
    history = model.fit(
        tfps.DatasetCreator(_dataset),
        epochs=2,
        steps_per_epoch=50,
        validation_data=tfps.DatasetCreator(_dataset),
        validation_steps=17,
        callbacks=[Watch()],
        verbose=0,
    ).history
    assert history["seen"] == [50 * _BATCH] * 2
    assert int(model.optimizer.iterations.numpy()) == steps_before + 100
