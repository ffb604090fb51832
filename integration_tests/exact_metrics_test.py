"""Tests that every metric of Keras has the result of one process."""

import inspect
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.variables.states.merge_rule import MergeRule

_BATCH = 16
_BATCHES = 40
_CLASSES = 4
_random = np.random.default_rng(0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=3, num_ps=1) as cluster:
        yield cluster


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def _one_hot(labels: np.ndarray) -> np.ndarray:
    return np.eye(_CLASSES, dtype="float32")[labels]


def _softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


_LABELS = _random.integers(0, _CLASSES, (_BATCHES, _BATCH))
_SCORES = _softmax(
    _random.normal(size=(_BATCHES, _BATCH, _CLASSES)) + 2 * _one_hot(_LABELS)
).astype("float32")
_BINARY = (_LABELS[..., None] % 2).astype("float32")
_GUESSES = np.clip(
    _BINARY * 0.4 + _random.uniform(0.05, 0.55, _BINARY.shape), 0, 1
).astype("float32")
_WEIGHTS = _random.integers(1, 4, (_BATCHES, _BATCH)).astype("float32")

# Arguments of metrics, for every batch.
_INPUTS = {
    "binary": (_BINARY, _GUESSES, _WEIGHTS),
    "equal": (_BINARY, np.round(_GUESSES), _WEIGHTS),
    "one-hot": (_one_hot(_LABELS), _SCORES, _WEIGHTS),
    "sparse": (_LABELS.astype("int32"), _SCORES, _WEIGHTS),
    # Keras warns about weights that are not integers.
    "matrix": (_LABELS.astype("int32"), _SCORES, _WEIGHTS.astype("int32")),
    "one-hot matrix": (
        _one_hot(_LABELS),
        _SCORES,
        _WEIGHTS.astype("int32"),
    ),
    "binary matrix": (_BINARY, _GUESSES, _WEIGHTS.astype("int32")),
    "values": (_GUESSES[..., 0], _WEIGHTS),
}

_METRICS: dict[str, dict[str, Callable[[], Any]]] = {
    "equal": {"Accuracy": keras.metrics.Accuracy},
    "values": {"Mean": keras.metrics.Mean, "Sum": keras.metrics.Sum},
    "binary": {
        "AUC": keras.metrics.AUC,
        "AUC of precision and recall": lambda: keras.metrics.AUC(curve="PR"),
        "BinaryAccuracy": keras.metrics.BinaryAccuracy,
        "BinaryCrossentropy": keras.metrics.BinaryCrossentropy,
        "FalseNegatives": keras.metrics.FalseNegatives,
        "FalsePositives": keras.metrics.FalsePositives,
        "Hinge": keras.metrics.Hinge,
        "LogCoshError": keras.metrics.LogCoshError,
        "MeanAbsoluteError": keras.metrics.MeanAbsoluteError,
        "MeanAbsolutePercentageError": (
            keras.metrics.MeanAbsolutePercentageError
        ),
        "MeanMetricWrapper": lambda: keras.metrics.MeanMetricWrapper(
            lambda y_true, y_pred: (y_true - y_pred)[:, 0], name="wrapped"
        ),
        "MeanSquaredError": keras.metrics.MeanSquaredError,
        "MeanSquaredLogarithmicError": (
            keras.metrics.MeanSquaredLogarithmicError
        ),
        "Poisson": keras.metrics.Poisson,
        "Precision": keras.metrics.Precision,
        "PrecisionAtRecall": lambda: keras.metrics.PrecisionAtRecall(0.7),
        "R2Score": keras.metrics.R2Score,
        "Recall": keras.metrics.Recall,
        "RecallAtPrecision": lambda: keras.metrics.RecallAtPrecision(0.7),
        "RootMeanSquaredError": keras.metrics.RootMeanSquaredError,
        "SensitivityAtSpecificity": (
            lambda: keras.metrics.SensitivityAtSpecificity(0.7)
        ),
        "SpecificityAtSensitivity": (
            lambda: keras.metrics.SpecificityAtSensitivity(0.7)
        ),
        "SquaredHinge": keras.metrics.SquaredHinge,
        "TrueNegatives": keras.metrics.TrueNegatives,
        "TruePositives": lambda: keras.metrics.TruePositives([0.3, 0.6]),
    },
    "one-hot": {
        "AUC of labels": lambda: keras.metrics.AUC(
            multi_label=True, num_labels=_CLASSES
        ),
        "CategoricalAccuracy": keras.metrics.CategoricalAccuracy,
        "CategoricalCrossentropy": keras.metrics.CategoricalCrossentropy,
        "CategoricalHinge": keras.metrics.CategoricalHinge,
        "ConcordanceCorrelation": keras.metrics.ConcordanceCorrelation,
        "CosineSimilarity": keras.metrics.CosineSimilarity,
        "F1Score": keras.metrics.F1Score,
        "FBetaScore": lambda: keras.metrics.FBetaScore("micro", beta=2.0),
        "KLDivergence": keras.metrics.KLDivergence,
        "PearsonCorrelation": keras.metrics.PearsonCorrelation,
        "TopKCategoricalAccuracy": (
            lambda: keras.metrics.TopKCategoricalAccuracy(2)
        ),
    },
    "binary matrix": {
        "BinaryIoU": lambda: keras.metrics.BinaryIoU([0, 1], 0.5),
    },
    "one-hot matrix": {
        "OneHotIoU": lambda: keras.metrics.OneHotIoU(_CLASSES, [0, 2]),
        "OneHotMeanIoU": lambda: keras.metrics.OneHotMeanIoU(_CLASSES),
    },
    "matrix": {
        "IoU": lambda: keras.metrics.IoU(_CLASSES, [1], sparse_y_pred=False),
        "MeanIoU": lambda: keras.metrics.MeanIoU(_CLASSES, sparse_y_pred=False),
    },
    "sparse": {
        "SparseCategoricalAccuracy": keras.metrics.SparseCategoricalAccuracy,
        "SparseCategoricalCrossentropy": (
            keras.metrics.SparseCategoricalCrossentropy
        ),
        "SparseTopKCategoricalAccuracy": (
            lambda: keras.metrics.SparseTopKCategoricalAccuracy(2)
        ),
    },
}


class Written(keras.metrics.Metric):
    """Metric with states of several dtypes, and both ways of adding."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.add_variable((), "zeros", dtype="int32")
        self.total = self.add_variable((_CLASSES,), "zeros", dtype="float64")
        self.any = self.add_variable((), "zeros", dtype="bool")
        self.most = self.add_variable((_CLASSES,), "zeros", dtype="int64")
        self.least = self.add_variable((), "zeros")

    def update_state(self, y_true: Any, y_pred: Any, weights: Any) -> None:
        self.count.assign(self.count + tf.shape(y_true)[0])
        self.total.assign_add(
            tf.reduce_sum(tf.cast(y_true, tf.float64), axis=0)
        )
        self.any.assign(tf.logical_or(self.any, tf.reduce_any(weights > 2.5)))
        guesses = tf.cast(100.0 * y_pred, tf.int64)
        self.most.assign(
            keras.ops.maximum(self.most, tf.reduce_max(guesses, axis=0))
        )
        self.least.assign(
            keras.ops.min(tf.stack([self.least.value, -tf.reduce_max(y_pred)]))
        )

    def result(self) -> Any:
        return tf.concat(
            [
                tf.cast(self.most, tf.float64),
                [tf.cast(self.least, tf.float64)],
                self.total,
                [tf.cast(self.count, tf.float64)],
                [tf.cast(self.any, tf.float64)],
            ],
            axis=0,
        )


_METRICS["one-hot"]["written by a user"] = Written


def _made() -> dict[str, dict[str, Any]]:
    return {
        kind: {name: make() for name, make in metrics.items()}
        for kind, metrics in _METRICS.items()
    }


def _update(metrics: dict[str, dict[str, Any]], batch: Any) -> None:
    for kind, alike in metrics.items():
        for metric in alike.values():
            metric.update_state(*batch[kind])


def test_none_is_missing() -> None:
    everything = {
        name
        for name, metric in vars(keras.metrics).items()
        if inspect.isclass(metric) and metric is not keras.metrics.Metric
    }
    tested = {name for alike in _METRICS.values() for name in alike}
    assert everything <= tested


def _require_rules(name: str, metric: Any) -> None:
    """Checks that the operations that assign each state yield a rule."""
    for state in metric.variables:
        path = f"{name}.{state.name}"
        assert state.value.is_settled, path
        if not isinstance(metric, Written):
            assert state.value.rule is MergeRule.SUM, path


def test_the_result_of_many_workers_is_that_of_one_process(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        metrics = _made()

    @tf.function
    def update(batch: Any) -> None:
        strategy.run(lambda: _update(metrics, batch))

    alone = _made()
    update_alone = tf.function(lambda batch: _update(alone, batch))
    for round_ in range(2):
        for index in range(_BATCHES):
            batch = {
                kind: tuple(tf.constant(array[index]) for array in arrays)
                for kind, arrays in _INPUTS.items()
            }
            coordinator.schedule(update, args=(batch,))
            update_alone(batch)
        coordinator.join()
        for kind, alike in metrics.items():
            for name, metric in alike.items():
                np.testing.assert_allclose(
                    np.asarray(metric.result()),
                    np.asarray(alone[kind][name].result()),
                    rtol=1e-4,
                    err_msg=f"{name}, round {round_}",
                )
                _require_rules(name, metric)
                metric.reset_state()
                alone[kind][name].reset_state()
                for state in metric.variables:
                    assert not np.any(state.numpy()), f"{name}.{state.name}"


def test_evaluate_on_workers_is_evaluate_alone(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """Exactly one of the workers reads each batch."""

    def build() -> keras.Model:
        model = keras.Sequential(
            [keras.Input((_CLASSES,)), keras.layers.Dense(1, "sigmoid")]
        )
        model.compile(
            loss="binary_crossentropy",
            metrics=["accuracy", keras.metrics.AUC(), keras.metrics.R2Score()],
            weighted_metrics=[keras.metrics.Recall()],
        )
        return model

    def arrays() -> tuple[np.ndarray, ...]:
        return tuple(
            array.reshape(-1, *array.shape[2:])
            for array in (_SCORES, _BINARY, _WEIGHTS)
        )

    steps = 12

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        # Every batch of every worker has the same examples.
        return (
            tf.data.Dataset.from_tensor_slices(arrays())
            .take(4 * _BATCH)
            .batch(4 * _BATCH)
            .repeat()
        )

    alone = build()
    x, y, weights = (array[: 4 * _BATCH] for array in arrays())
    expected = alone.evaluate(
        *(np.concatenate([a] * steps) for a in (x, y)),
        sample_weight=np.concatenate([weights] * steps),
        batch_size=4 * _BATCH,
        verbose=0,
        return_dict=True,
    )
    with strategy.scope():
        model = build()
    model.set_weights(alone.get_weights())
    for _ in range(2):
        actual = model.evaluate(
            tfps.DatasetCreator(dataset_fn),
            steps=steps,
            verbose=0,
            return_dict=True,
        )
        assert len(actual) == len(expected) == 5
        np.testing.assert_allclose(
            list(actual.values()), list(expected.values()), rtol=1e-4
        )
