"""Sums of rows that belong together.

Shape legend: N rows, S sums, D numbers in a row.
"""

from typing import Any

import tensorflow as tf

# TensorFlow multiplies sparse by dense matrices number by number where rows are
# short, and sums segments by an expression for each row; of one number a row,
# and of long rows, the latter is faster.
_NARROWEST = 2
_WIDEST = 31
_DTYPES = (tf.float32, tf.float64)


def segment_sums(
    values_ND: tf.Tensor, segments_N: tf.Tensor, num_segments: Any
) -> tf.Tensor:
    """As `tf.math.unsorted_segment_sum`, but faster for short rows.

    These are multiplied by the matrix of zeros and ones that adds them up: the
    same sums, in the same order, in six tenths to a third of the time, for 512
    to 65,536 rows of 16 numbers.

    Args:
        values_ND: The rows, which may have any rank.
        segments_N: To which sum each belongs, `0 <= segment < num_segments`,
            int32 or int64.
        num_segments: How many sums, an integer or a scalar tensor.

    Returns:
        The sums, of shape `(S, D)`.
    """
    if not _is_faster_as_product(values_ND):
        return tf.math.unsorted_segment_sum(values_ND, segments_N, num_segments)
    num_rows = tf.size(segments_N)
    return tf.raw_ops.SparseTensorDenseMatMul(
        a_indices=_beside_their_rows(segments_N, num_rows),
        a_values=tf.ones([num_rows], values_ND.dtype),
        a_shape=tf.stack(
            [tf.cast(each, tf.int64) for each in (num_segments, num_rows)]
        ),
        b=values_ND,
    )


def _beside_their_rows(segments_N: tf.Tensor, num_rows: tf.Tensor) -> tf.Tensor:
    """Each segment with the number of its row, shape `(N, 2)`."""
    if segments_N.dtype != tf.int32:
        return tf.stack(
            [segments_N, tf.range(num_rows, dtype=segments_N.dtype)], 1
        )
    # As one number of 8 bytes each, of which the lower half comes first on the
    # processors that TensorFlow is made for. To lay them beside each other as
    # above takes six times as long: as long as to add up the rows.
    half = 1 << 32
    both_N = tf.range(0, tf.cast(num_rows, tf.int64) * half, half)
    return tf.bitcast(tf.cast(segments_N, tf.int64) + both_N, tf.int32)


def _is_faster_as_product(values_ND: tf.Tensor) -> bool:
    shape = values_ND.shape
    return (
        shape.rank == 2
        and shape[1] is not None
        and _NARROWEST <= shape[1] <= _WIDEST
        and values_ND.dtype in _DTYPES
        # Which task runs it is not known here, only which devices there are.
        and not tf.config.list_logical_devices("GPU")
    )
