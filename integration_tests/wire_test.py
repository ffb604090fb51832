"""Tests of the effect of smaller wire dtypes on training and messages.

`wire_rules_test` has several workers.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS, _WIDTH, _FEATURES, _BATCH, _STEPS = 40, 8, 3, 16, 10
_RATE = 0.1
_rng = np.random.default_rng(3)
# Ids with repetitions in a batch.
_IDS = _rng.integers(0, _ROWS, (_STEPS, _BATCH, _FEATURES)).astype("int32")
_TARGETS = _rng.normal(size=(_STEPS, _BATCH, 1)).astype("float32")
_TABLE = _rng.normal(size=(_ROWS, _WIDTH)).astype("float32")
_KERNEL = _rng.normal(size=(_FEATURES * _WIDTH, 1)).astype("float32")


def _bfloat16(value: np.ndarray) -> np.ndarray:
    return tf.cast(tf.cast(value, tf.bfloat16), tf.float32).numpy()


def _as_it_is(value: np.ndarray) -> np.ndarray:
    return value


def _expected(
    of_table: Callable[[np.ndarray], np.ndarray],
    of_kernel: Callable[[np.ndarray], np.ndarray],
    of_gradients: Callable[[np.ndarray], np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Runs gradient descent in NumPy, and rounds the values that travel."""
    of_gradients = of_gradients or of_table
    table, kernel = _TABLE.copy(), _KERNEL.copy()
    for ids, targets in zip(_IDS, _TARGETS, strict=True):
        x = of_table(table)[ids].reshape([_BATCH, -1])
        w = of_kernel(kernel)
        error = 2.0 * (x @ w - targets) / _BATCH
        rows = np.zeros_like(table)
        np.add.at(rows, ids, (error @ w.T).reshape([*ids.shape, _WIDTH]))
        table -= _RATE * of_gradients(rows)
        kernel -= _RATE * of_kernel(x.T @ error)
    return [table, kernel]


def _dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    del context
    return tf.data.Dataset.from_tensor_slices((_IDS, _TARGETS)).repeat()


def _trained(
    cluster: tfps.LocalCluster,
    wire_dtype: Any,
    partitioner: Any,
    consistency: Any = None,
    *,
    by_id: bool = False,
) -> tuple[list[np.ndarray], int]:
    """Returns the weights after some steps, and the known bytes of messages.

    With `by_id`, the table has no vocabulary.
    """
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        partitioner,
        consistency=consistency,
        # Steps run one after the other, as in NumPy.
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
        communication=tfps.CommunicationOptions(wire_dtype=wire_dtype),
    )
    with strategy.scope():
        rows: Any = (
            tfps.layers.DynamicEmbedding(_WIDTH, capacity=_ROWS, name="table")
            if by_id
            else keras.layers.Embedding(_ROWS, _WIDTH, name="table")
        )
        model = keras.Sequential(
            [
                keras.Input((_FEATURES,), dtype="int32"),
                rows,
                keras.layers.Flatten(),
                keras.layers.Dense(1, use_bias=False, name="top"),
            ]
        )
        model.compile(keras.optimizers.SGD(_RATE), "mse")
    if by_id:
        rows.import_(np.arange(_ROWS), _TABLE)
        model.layers[-1].set_weights([_KERNEL])
    else:
        model.set_weights([_TABLE, _KERNEL])
    model.fit(tfps.DatasetCreator(_dataset), steps_per_epoch=_STEPS, verbose=0)
    explanation = strategy.explain(model, print_fn=None)
    num_bytes = sum(
        sent.num_bytes for body in explanation.bodies for sent in body.sent
    )
    weights = model.get_weights()
    if by_id:
        ids, table = rows.export()
        weights = [table[np.argsort(ids)], weights[-1]]
    tfps.ClusterCoordinator(strategy).close()
    return weights, num_bytes


def _not_the_kernel(path: str) -> str | None:
    return None if path.endswith("top/kernel") else "bfloat16"


@pytest.mark.parametrize(
    "partitioner", [None, tfps.partitioners.FixedShardsPartitioner(2)]
)
@pytest.mark.parametrize(
    ("wire_dtype", "of_kernel"),
    [("bfloat16", _bfloat16), (_not_the_kernel, _as_it_is)],
)
@pytest.mark.parametrize("by_id", [False, True], ids=["", "by id"])
def test_weights_are_those_of_rounded_reads_and_gradients(
    cluster: tfps.LocalCluster,
    wire_dtype: Any,
    of_kernel: Callable[[np.ndarray], np.ndarray],
    partitioner: Any,
    by_id: bool,
) -> None:
    weights, _ = _trained(cluster, wire_dtype, partitioner, by_id=by_id)
    rounded = _expected(_bfloat16, of_kernel)
    exact = _expected(_as_it_is, _as_it_is)
    for mine, theirs, other in zip(weights, rounded, exact, strict=True):
        # A sum in another order may round in the other direction.
        difference = np.abs(mine - theirs).max()
        assert difference < 2e-3
        assert difference < 0.3 * np.abs(mine - other).max()


def _bytes(value: np.ndarray) -> np.ndarray:
    scale = np.abs(value).max(1, keepdims=True) / np.float32(127)
    return np.round(value / scale) * scale


@pytest.mark.parametrize(
    "partitioner", [None, tfps.partitioners.FixedShardsPartitioner(2)]
)
@pytest.mark.parametrize("by_id", [False, True], ids=["", "by id"])
def test_weights_are_about_those_of_rows_of_bytes(
    cluster: tfps.LocalCluster, partitioner: Any, by_id: bool
) -> None:
    (table, kernel), _ = _trained(cluster, "int8", partitioner, by_id=by_id)
    # Gradients of rows are rounded stochastically, one step up or down.
    expected, expected_kernel = _expected(
        _bytes, _as_it_is, of_gradients=_as_it_is
    )
    difference = table - expected
    assert 0.0 < np.abs(difference).max() < 0.006
    assert abs(difference.mean()) < 1e-4
    # The kernel has one column, and is not rounded.
    np.testing.assert_allclose(kernel, expected_kernel, atol=0.02)


@pytest.mark.parametrize(
    "consistency",
    [tfps.Sync(), tfps.BoundedStaleness(2)],
    ids=["sync", "bound"],
)
@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16"])
def test_one_worker_has_the_numbers_of_asynchronous_training(
    cluster: tfps.LocalCluster, wire_dtype: str, consistency: Any
) -> None:
    cut = tfps.partitioners.FixedShardsPartitioner(2)
    weights, _ = _trained(cluster, wire_dtype, cut, consistency)
    expected, _ = _trained(cluster, wire_dtype, cut)
    exact = _expected(_as_it_is, _as_it_is)
    for mine, theirs, other in zip(weights, expected, exact, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
        assert np.abs(mine - other).max() > 1e-4


_LOCAL = 4


def _expected_of_rounds(
    rounded: Callable[[np.ndarray], np.ndarray],
) -> list[np.ndarray]:
    """Makes rounds of local steps in NumPy, and rounds what travels.

    That is the kernel once in a round, rows in each step, and the sums of
    gradients.
    """
    table, kernel = _TABLE.copy(), _KERNEL.copy()
    for first in range(0, _STEPS, _LOCAL):
        of_round = slice(first, first + _LOCAL)
        w = rounded(kernel)
        rows, of_kernel = np.zeros_like(table), np.zeros_like(kernel)
        for ids, targets in zip(
            _IDS[of_round], _TARGETS[of_round], strict=True
        ):
            x = rounded(table)[ids].reshape([_BATCH, -1])
            error = 2.0 * (x @ w - targets) / _BATCH
            np.add.at(rows, ids, (error @ w.T).reshape([*ids.shape, _WIDTH]))
            of_kernel += x.T @ error
            # The copy of the worker moves by what has not travelled.
            w = w - _RATE * x.T @ error
        table -= _RATE * rounded(rows)
        kernel -= _RATE * rounded(of_kernel)
    return [table, kernel]


@pytest.mark.parametrize(
    "partitioner", [None, tfps.partitioners.FixedShardsPartitioner(2)]
)
def test_rounds_of_local_steps_round_what_travels(
    cluster: tfps.LocalCluster, partitioner: Any
) -> None:
    weights, _ = _trained(
        cluster, "bfloat16", partitioner, tfps.Async(local_steps=_LOCAL)
    )
    rounded = _expected_of_rounds(_bfloat16)
    exact = _expected_of_rounds(_as_it_is)
    for mine, theirs, other in zip(weights, rounded, exact, strict=True):
        difference = np.abs(mine - theirs).max()
        assert difference < 0.3 * np.abs(mine - other).max(), difference


def test_rounds_of_local_steps_send_fewer_bytes(
    cluster: tfps.LocalCluster,
) -> None:
    local = tfps.Async(local_steps=_LOCAL)
    _, half = _trained(cluster, "bfloat16", None, local)
    _, without_kernel = _trained(cluster, _not_the_kernel, None, local)
    # The kernel and its gradient; and some sizes that are not sent.
    assert _KERNEL.nbytes <= without_kernel - half < _KERNEL.nbytes + 16


def test_without_it_nothing_is_rounded(cluster: tfps.LocalCluster) -> None:
    weights, num_bytes = _trained(cluster, None, None)
    for mine, theirs in zip(
        weights, _expected(_as_it_is, _as_it_is), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    # The kernel and its gradient; and some sizes that are not sent.
    _, half = _trained(cluster, "bfloat16", None)
    _, without_kernel = _trained(cluster, _not_the_kernel, None)
    assert _KERNEL.nbytes <= num_bytes - half < _KERNEL.nbytes + 16
    assert num_bytes - 16 < without_kernel <= num_bytes


def test_what_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="Received: wire_dtype='int7'"):
        tfps.ParameterServerStrategy(
            communication=tfps.CommunicationOptions(wire_dtype="int7")
        )
