"""Rows of a table in which no row number occurs twice.

An update must see each row once, with the sum of all that belongs to it.
Summing costs time on every worker, so what is summed already says so by its
type.
"""

import tensorflow as tf

from tfps_plugin.variables.lookup import segment_sums


class DistinctRows(tf.IndexedSlices):
    """Slices in which every id occurs once.

    The gradient of a table that was looked up once. TensorFlow adds up the
    gradients of several lookups by putting them one behind the other, as a
    plain `tf.IndexedSlices`.
    """


def dense_shape(shape: tf.TensorShape) -> tf.Tensor:
    """The shape of a table, as its slices have it.

    Args:
        shape: Of the table, fully defined.

    Returns:
        A vector, int32 where that is enough: TensorFlow's own slices have it
        so, and those of two branches must be alike.
    """
    sizes = shape.as_list()
    is_small = max(sizes) <= tf.int32.max
    return tf.constant(sizes, tf.int32 if is_small else tf.int64)


def distinct(slices: tf.IndexedSlices) -> DistinctRows:
    """Sums what belongs to the same id.

    Args:
        slices: Values of shape `(N, ...)` for ids of shape `(N,)`, repeated
            or not.

    Returns:
        Each id once, in the order of its first occurrence, with the sum of
        its values; what `slices` has, if that is distinct already.
    """
    if isinstance(slices, DistinctRows):
        return slices
    if _are_distinct(slices.indices):
        return DistinctRows(slices.values, slices.indices, slices.dense_shape)
    ids_U, sums_UD = sum_by_id(
        tf.convert_to_tensor(slices.indices),
        tf.convert_to_tensor(slices.values),
    )
    return DistinctRows(sums_UD, ids_U, slices.dense_shape)


def _are_distinct(ids: tf.Tensor) -> bool:
    """Whether ids of a function are, as can be seen, the result of tf.unique.

    So are those that TensorFlow's own gradient of a lookup gives.
    """
    if not tf.is_symbolic_tensor(ids):
        return False
    while ids.op.type in ("Identity", "Reshape"):
        ids = ids.op.inputs[0]
    return ids.op.type == "Unique" and ids is ids.op.outputs[0]


def sum_by_id(
    ids_N: tf.Tensor, values_ND: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds up what belongs to the same id.

    Args:
        ids_N: Row numbers, repeated or not, shape `(N,)`.
        values_ND: Shape `(N, D)`.

    Returns:
        The distinct ids, shape `(U,)`, and the sums, shape `(U, D)`.
    """
    ids_U, positions_N = tf.unique(ids_N)
    sums_UD = segment_sums.segment_sums(values_ND, positions_N, tf.size(ids_U))
    return ids_U, sums_UD
