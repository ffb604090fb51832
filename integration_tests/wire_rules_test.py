"""Tests of smaller wire dtypes where workers wait for each other.

`wire_test` has one worker. What two of them send is rounded before it is added
up; NumPy does the same here.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = [
    pytest.mark.cluster(num_workers=2, num_ps=2),
    pytest.mark.sample(cases=2, group="consistency_rules"),
]

_WORKERS, _STEPS, _ROWS, _WIDTH, _FEATURES = 2, 10, 40, 8, 3
# Examples of each worker: one counts more than the other.
_SIZES = (16, 8)
_RATE = 0.1
_random = np.random.default_rng(3)
_TABLE = _random.normal(size=(_ROWS, _WIDTH)).astype("float32")
_KERNEL = _random.normal(size=(_FEATURES * _WIDTH, 1)).astype("float32")
_IDS = [
    _random.integers(0, _ROWS, (_STEPS, size, _FEATURES)).astype("int32")
    for size in _SIZES
]
_TARGETS = [
    _random.normal(size=(_STEPS, size, 1)).astype("float32") for size in _SIZES
]
# Inputs and targets of a matrix.
_MATRIX = _random.normal(size=(12, _WIDTH)).astype("float32")
_X = [
    _random.normal(size=(_STEPS, size, 12)).astype("float32") for size in _SIZES
]
_Y = [
    _random.normal(size=(_STEPS, size, _WIDTH)).astype("float32")
    for size in _SIZES
]

Rounded = Callable[[np.ndarray], np.ndarray]


def _through(dtype: tf.DType) -> Rounded:
    return lambda value: tf.cast(tf.cast(value, dtype), tf.float32).numpy()


def _as_it_is(value: np.ndarray) -> np.ndarray:
    return value


def _bytes(value: np.ndarray) -> np.ndarray:
    scale = np.abs(value).max(1, keepdims=True) / np.float32(127)
    return np.round(value / scale) * scale


def _of_worker(inputs: Any, targets: Any) -> tfps.DatasetCreator:
    def dataset_fn(context: Any) -> tf.data.Dataset:
        worker = context.input_pipeline_id
        rows = tf.data.Dataset.from_tensor_slices(
            (inputs[worker], targets[worker])
        ).unbatch()
        # The type of a batch is that of any size.
        return rows.batch(_SIZES[worker])

    return tfps.DatasetCreator(dataset_fn)


def _trained(
    cluster: tfps.LocalCluster,
    make: Callable[[], keras.Model],
    start: list[np.ndarray],
    data: Any,
    wire_dtype: Any,
    consistency: Any,
) -> list[np.ndarray]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=consistency,
        communication=tfps.CommunicationOptions(wire_dtype=wire_dtype),
    )
    try:
        with strategy.scope():
            model = make()
        model.set_weights(start)
        model.fit(data, verbose=0)
        return model.get_weights()
    finally:
        tfps.ClusterCoordinator(strategy).close()


def _looking_up() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((_FEATURES,), dtype="int32"),
            keras.layers.Embedding(_ROWS, _WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(1, use_bias=False),
        ]
    )
    model.compile(keras.optimizers.SGD(_RATE), "mse")
    return model


def _looked_up(rounded: Rounded) -> list[np.ndarray]:
    """Returns the table and the kernel after training in NumPy."""
    table, kernel = _TABLE.copy(), _KERNEL.copy()
    for step in range(_STEPS):
        of_table, of_kernel = np.zeros_like(table), np.zeros_like(kernel)
        w = rounded(kernel)
        for size, all_ids, targets in zip(_SIZES, _IDS, _TARGETS, strict=True):
            ids = all_ids[step]
            x = rounded(table)[ids].reshape([size, -1])
            error = 2.0 * (x @ w - targets[step]) / size
            rows = np.zeros_like(table)
            np.add.at(rows, ids, (error @ w.T).reshape([*ids.shape, _WIDTH]))
            weight = size / sum(_SIZES)
            of_table += weight * rounded(rows)
            of_kernel += weight * rounded(x.T @ error)
        table -= _RATE * of_table
        kernel -= _RATE * of_kernel
    return [table, kernel]


@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16"])
def test_gradients_are_rounded_before_they_are_added_up(
    cluster: tfps.LocalCluster, wire_dtype: str
) -> None:
    weights = _trained(
        cluster,
        _looking_up,
        [_TABLE, _KERNEL],
        _of_worker(_IDS, _TARGETS),
        wire_dtype,
        tfps.Sync(),
    )
    rounded = _looked_up(_through(tf.as_dtype(wire_dtype)))
    exact = _looked_up(_as_it_is)
    for mine, theirs, other in zip(weights, rounded, exact, strict=True):
        # A sum in another order may round in the other direction.
        difference = np.abs(mine - theirs).max()
        assert difference < 0.3 * np.abs(mine - other).max(), difference


def _of_a_matrix() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(_WIDTH, use_bias=False)]
    )
    model.compile(keras.optimizers.SGD(_RATE), "mse")
    return model


def _with_feedback(rounded: Rounded) -> np.ndarray:
    """Returns the matrix after training in NumPy.

    Each worker adds the error of its gradient to its next one.
    """
    matrix = _MATRIX.copy()
    rests = [np.zeros_like(matrix) for _ in range(_WORKERS)]
    for step in range(_STEPS):
        w = rounded(matrix)
        total = np.zeros_like(matrix)
        for worker, size in enumerate(_SIZES):
            x, y = _X[worker][step], _Y[worker][step]
            wanted = 2.0 * x.T @ (x @ w - y) / y.size + rests[worker]
            sent = rounded(wanted)
            rests[worker] = wanted - sent
            total += size / sum(_SIZES) * sent
        matrix -= _RATE * total
    return matrix


def test_each_worker_keeps_the_error_of_its_bytes(
    cluster: tfps.LocalCluster,
) -> None:
    (matrix,) = _trained(
        cluster,
        _of_a_matrix,
        [_MATRIX],
        _of_worker(_X, _Y),
        "int8",
        tfps.Sync(),
    )
    difference = np.abs(matrix - _with_feedback(_bytes)).max()
    assert difference < 0.3 * np.abs(matrix - _with_feedback(_as_it_is)).max()


def _weighing(optimizer: Any) -> keras.Model:
    """Returns a model whose gradients are its inputs, times a rate."""
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    model.compile(optimizer, lambda y, p: y[:, 0] * p[:, 0])
    return model


def test_all_gradients_are_rounded_under_a_bound(
    cluster: tfps.LocalCluster,
) -> None:
    """They do not depend on weights, so that their order does not matter."""
    (kernel,) = _trained(
        cluster,
        lambda: _weighing(keras.optimizers.SGD(1.0)),
        [np.zeros((12, 1), "float32")],
        _of_worker(_X, [y[..., :1] for y in _Y]),
        "bfloat16",
        tfps.BoundedStaleness(2),
    )

    def expected(rounded: Rounded) -> np.ndarray:
        updates = [
            rounded(x.T @ y[:, :1] / len(y))
            for of_x, of_y in zip(_X, _Y, strict=True)
            for x, y in zip(of_x, of_y, strict=True)
        ]
        return -np.sum(updates, axis=0)

    difference = np.abs(kernel - expected(_through(tf.bfloat16))).max()
    assert difference < 0.3 * np.abs(kernel - expected(_as_it_is)).max()


def _scaled(scale: float) -> Any:
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1.0),
        initial_scale=scale,
        # The scale stays as it is until a step overflows.
        dynamic_growth_steps=10**6,
    )


@pytest.mark.parametrize("part", [1e-9, 1e-3, 3.0])
def test_half_precision_has_small_gradients_and_skips_those_too_large(
    cluster: tfps.LocalCluster, part: float
) -> None:
    """Scaled gradients travel: those of 3.0 would be infinite on the way."""
    ones = [np.full((_STEPS, size, 12), part, "float32") for size in _SIZES]
    signs = [np.ones((_STEPS, size, 1), "float32") for size in _SIZES]
    (kernel,) = _trained(
        cluster,
        lambda: _weighing(_scaled(2.0**15)),
        [np.zeros((12, 1), "float32")],
        _of_worker(ones, signs),
        "float16",
        tfps.Sync(),
    )
    # The first step overflows, and halves the scale.
    num_steps = _STEPS - 1 if part == 3.0 else _STEPS
    np.testing.assert_allclose(kernel, -num_steps * part, rtol=1e-3)
