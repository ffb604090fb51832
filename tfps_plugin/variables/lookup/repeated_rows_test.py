"""Tests of rows where they are asked for."""

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables.lookup import repeated_rows

_ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("positions", [[], [2], [1, 1, 3], [[0, 3], [3, 2]], 2])
@pytest.mark.parametrize("traced", [False, True])
def test_rows_and_gradient_are_those_of_gather(
    positions: object, traced: bool
) -> None:
    where = tf.constant(positions, tf.int32)
    upstream = tf.random.stateless_uniform([*where.shape, 3], [1, 2])

    def both(lookup: object) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        rows = tf.constant(_ROWS)
        with tf.GradientTape() as outer:
            outer.watch(rows)
            with tf.GradientTape() as tape:
                tape.watch(rows)
                found = lookup(rows, where)  # type: ignore[operator]
                # Its own gradient depends on the rows, too.
                loss = tf.reduce_sum(found**3 * upstream)
            gradient = tf.convert_to_tensor(tape.gradient(loss, rows))
        return found, gradient, outer.gradient(gradient, rows)

    wrap = tf.function if traced else lambda function: function
    mine = wrap(lambda: both(repeated_rows.repeat))()
    theirs = wrap(lambda: both(tf.gather))()
    for own, expected in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(
            tf.convert_to_tensor(own), tf.convert_to_tensor(expected)
        )


def test_the_shape_is_known_when_it_is_traced() -> None:
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3]),
            tf.TensorSpec([None, 5], tf.int32),
        ]
    )
    def look_up(rows: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        found = repeated_rows.repeat(rows, positions)
        assert found.shape.as_list() == [None, 5, 3]
        return found

    assert look_up(tf.zeros([2, 3]), tf.zeros([4, 5], tf.int32)).shape[0] == 4


def test_rows_that_are_looked_up_again_are_summed() -> None:
    rows = tf.constant(_ROWS)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        found = repeated_rows.repeat(rows, tf.constant([1, 1, 3]))
        # The gradient of this is one of slices.
        loss = tf.reduce_sum(tf.gather(found, [0, 1, 1]))
    gradient = tf.convert_to_tensor(tape.gradient(loss, rows))
    np.testing.assert_array_equal(gradient[:, 0], [0.0, 3.0, 0.0, 0.0])
