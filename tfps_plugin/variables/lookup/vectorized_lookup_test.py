"""Tests of lookups in functions that are vectorized."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables import testing

_VALUE = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")
# The number of distinct ids differs from row to row.
_IDS = np.array([[1, 2, 1], [3, 3, 3], [9, 0, 1]])


def _tables() -> list[Any]:
    """Returns a sharded table and a whole one."""
    return [
        testing.sharded_variable(_VALUE, 3),
        testing.remote_variable(_VALUE),
    ]


def _weighted(table: Any, ids: tf.Tensor) -> tf.Tensor:
    weights = tf.cast(ids[:, None], tf.float32)
    return tf.reduce_sum(tf.gather(table, ids) * weights, 0)


def _by_a_constant(table: Any, ids: tf.Tensor) -> tf.Tensor:
    return tf.gather(table, [2, 2, 7]) * tf.cast(ids[:, None], tf.float32)


def _in_a_branch(table: Any, ids: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        ids[0] > 2,
        lambda: tf.gather(table, ids) * 2.0,
        lambda: tf.gather(table, ids + 1),
    )


def _twice(table: Any, ids: tf.Tensor) -> tf.Tensor:
    return tf.gather(table, ids) + tf.gather(table, ids[::-1])


@pytest.mark.sample(cases=6)
@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize(
    "function",
    [_weighted, _by_a_constant, _in_a_branch, _twice],
)
def test_results_and_gradients_are_those_of_one_process(
    function: Callable[[Any, tf.Tensor], tf.Tensor], traced: bool
) -> None:
    def run(table: Any) -> Any:
        def step(ids: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                rows = tf.vectorized_map(lambda i: function(table, i), ids)
                loss = tf.reduce_sum(rows * rows)
            return rows, tape.gradient(loss, table)

        step = tf.function(step) if traced else step
        rows, gradient = step(tf.constant(_IDS))
        return rows, tf.convert_to_tensor(gradient)

    expected = run(tf.Variable(_VALUE))
    for table in _tables():
        for ours, theirs in zip(run(table), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_map_in_a_map() -> None:
    ids = tf.constant(_IDS)
    for table in _tables():
        products = tf.vectorized_map(
            lambda row, table=table: tf.vectorized_map(
                lambda i: tf.gather(table, i) * tf.gather(table, row[0]), row
            ),
            ids,
        )
        expected = _VALUE[_IDS] * _VALUE[_IDS[:, :1]]
        np.testing.assert_allclose(products, expected, rtol=1e-6)


def test_a_function_may_be_called() -> None:
    for table in _tables():

        @tf.function
        def rows(ids: tf.Tensor, table: Any = lambda t=table: t) -> tf.Tensor:
            return tf.gather(table(), ids) + 1.0

        found = tf.vectorized_map(rows, tf.constant(_IDS))
        np.testing.assert_array_equal(found, _VALUE[_IDS] + 1.0)


def test_rows_of_all_elements_are_looked_up_at_once() -> None:
    for table in _tables():

        @tf.function
        def step(ids: tf.Tensor, table: Any = lambda t=table: t) -> Any:
            return tf.vectorized_map(lambda i: tf.gather(table(), i), ids)

        graph = step.get_concrete_function(tf.TensorSpec([3, 3], tf.int32))
        types = [o.type for o in graph.graph.get_operations()]
        assert not {"While", "StatelessWhile"} & {*types}
        assert types.count("Unique") == 1


def test_ids_outside_are_told_of() -> None:
    for table in _tables():
        with pytest.raises(tf.errors.InvalidArgumentError, match="largest id"):
            tf.vectorized_map(
                lambda i, table=table: tf.gather(table, i), tf.constant([1, 10])
            )


def test_a_gradient_of_one_element_is_refused() -> None:
    for table in _tables():

        def gradient(ids: tf.Tensor, table: Any = table) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, ids))
            return tf.convert_to_tensor(tape.gradient(loss, table))

        with pytest.raises(errors.UnsupportedError, match=r"use tf\.map_fn"):
            tf.vectorized_map(gradient, tf.constant(_IDS))


def test_others_are_vectorized_as_before() -> None:
    def double(x: tf.Tensor) -> Any:
        y = tf.numpy_function(lambda a: a * 2, [x], tf.float32, stateful=False)
        y.set_shape([])
        return y + 1.0

    np.testing.assert_array_equal(
        tf.vectorized_map(double, tf.constant([1.0, 2.0])), [3.0, 5.0]
    )
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x * x
    np.testing.assert_array_equal(
        tape.jacobian(y, x), [[3.0, 0.0], [0.0, 12.0]]
    )
