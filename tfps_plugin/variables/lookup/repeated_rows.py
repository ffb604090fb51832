"""Rows of a table where they are asked for, each of which was fetched once.

Shape legend: U distinct rows, D the rest of a row's shape.
"""

from typing import Any

import tensorflow as tf


def repeat(rows_UD: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Repeats rows: `tf.gather` with a gradient of fewer operations.

    TensorFlow's gradient finds out the shape of the values when it runs, by
    six operations for each lookup and step. Here all of it but the number of
    rows is known before.

    Args:
        rows_UD: Distinct rows.
        positions: Which of them, an integer tensor of any shape.

    Returns:
        The rows, of shape `positions.shape + rows_UD.shape[1:]`. What a tape
        gives back are `tf.IndexedSlices`, with each position as often as it
        was asked for, as TensorFlow's are.
    """
    row_shape = rows_UD.shape[1:]
    if not row_shape.is_fully_defined():
        return tf.gather(rows_UD, positions)

    @tf.custom_gradient
    def gather(rows_UD: tf.Tensor, positions: tf.Tensor) -> Any:
        def gradient(upstream: Any) -> Any:
            values, indices = tf.convert_to_tensor(upstream), positions
            values.set_shape(positions.shape.concatenate(row_shape))
            if positions.shape.rank != 1:
                values = tf.reshape(values, [-1, *row_shape.as_list()])
                indices = tf.reshape(positions, [-1])
            slices = tf.IndexedSlices(values, indices, tf.shape(rows_UD))
            return slices, None

        return tf.gather(rows_UD, positions), gradient

    rows: tf.Tensor = gather(rows_UD, positions)
    return rows
