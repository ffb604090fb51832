"""Tests of tables that are looked up in some branches of a function."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables import testing

_VALUE = np.arange(28, dtype=np.float32).reshape(7, 4) / 10
_IDS = tf.constant([[5, 0, 5], [2, 6, 0]])


def _tables() -> list[Any]:
    """Returns a sharded table and a whole one."""
    return [
        testing.sharded_variable(_VALUE, 3),
        testing.remote_variable(_VALUE),
    ]


def _one_of_two(table: Any, case: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        case == 0,
        lambda: tf.gather(table, _IDS),
        lambda: tf.zeros([2, 3, 4]),
    )


def _the_other_of_two(table: Any, case: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        case == 0,
        lambda: tf.zeros([2, 3, 4]),
        lambda: tf.gather(table, _IDS) * 2.0,
    )


def _different_ids(table: Any, case: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        case == 0,
        lambda: tf.gather(table, _IDS),
        lambda: tf.gather(table, tf.cast(_IDS[:, :1], tf.int64)) + 1.0,
    )


def _one_of_many(table: Any, case: tf.Tensor) -> tf.Tensor:
    return tf.switch_case(
        case,
        [
            lambda: tf.gather(table, _IDS),
            lambda: tf.ones([2, 3, 4]),
            lambda: tf.gather(table, _IDS + 0) * 3.0,
        ],
    )


def _branch_in_a_branch(table: Any, case: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        case < 2,
        lambda: _one_of_two(table, case),
        lambda: tf.zeros([2, 3, 4]),
    )


def _branch_in_a_loop(table: Any, case: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(
        lambda i, _: i < 3,
        lambda i, x: (i + 1, x * 0.5 + _one_of_two(table, i)),
        (case, tf.zeros([2, 3, 4])),
    )[1]


def _rows_or_all(table: Any, case: tf.Tensor) -> tf.Tensor:
    return tf.cond(
        case == 0,
        lambda: tf.gather(table, _IDS[0]),
        lambda: tf.matmul(tf.ones([3, 7]), tf.convert_to_tensor(table)),
    )


def _as_well_outside(table: Any, case: tf.Tensor) -> tf.Tensor:
    return tf.gather(table, _IDS) * _one_of_two(table, case)


def _loss_and_gradient(
    table: Any, rows: Callable[[Any, tf.Tensor], tf.Tensor]
) -> Any:
    @tf.function
    def loss_and_gradient(case: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(rows(table, case)))
        return loss, tape.gradient(loss, table)

    return loss_and_gradient


def _dense(gradient: Any, shape: tf.TensorShape) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        np.testing.assert_array_equal(gradient.dense_shape, shape)
    return tf.convert_to_tensor(gradient)


@pytest.mark.parametrize(
    "rows",
    [
        _one_of_two,
        _the_other_of_two,
        _different_ids,
        _one_of_many,
        _branch_in_a_branch,
        _branch_in_a_loop,
        _rows_or_all,
        _as_well_outside,
    ],
)
def test_gradients_are_those_of_one_process(
    rows: Callable[[Any, tf.Tensor], tf.Tensor],
) -> None:
    plain = tf.Variable(_VALUE)
    expected = _loss_and_gradient(plain, rows)
    for table in _tables():
        ours = _loss_and_gradient(table, rows)
        for case in map(tf.constant, range(3)):
            loss, theirs = expected(case)
            our_loss, mine = ours(case)
            np.testing.assert_allclose(our_loss, loss, rtol=1e-6)
            np.testing.assert_allclose(
                _dense(mine, plain.shape),
                _dense(theirs, plain.shape),
                rtol=1e-6,
            )


def test_a_branch_without_a_lookup_gives_no_rows() -> None:
    for table in _tables():
        function = _loss_and_gradient(table, _one_of_two)
        num_rows = [
            function(tf.constant(case))[1].indices.shape[0] for case in (0, 1)
        ]
        assert num_rows == [4, 0]


def test_nobody_else_is_changed() -> None:
    # Zeros that are slices in one branch and a tensor in the next.
    variable = tf.Variable(_VALUE)

    @tf.function
    def gradients(case: tf.Tensor, x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cond(
                case == 0,
                lambda: tf.gather(variable, [1, 2]) * x,
                lambda: tf.ones([2, 4]) * tf.reduce_sum(variable),
            )
        return tape.gradient(y, [variable, x])

    of_variable, of_x = gradients(tf.constant(1), tf.constant(2.0))
    np.testing.assert_array_equal(
        tf.convert_to_tensor(of_variable), np.full((7, 4), 8.0)
    )
    assert of_x == 0.0
