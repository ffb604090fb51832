"""Rows of a batch: their number, and some of them.

A batch is a nested structure of tensors, ragged and sparse ones too. Its
examples are along the first axis of its parts. Scalars belong to all examples.
"""

from typing import Any

import tensorflow as tf


def sizes(batch: Any) -> list[tf.Tensor]:
    """Returns the number of rows of each part that is no scalar.

    Args:
        batch: The batch; leaves that are no tensors have no rows.

    Returns:
        int64 scalars.
    """
    found = []
    for part in tf.nest.flatten(batch):
        if isinstance(part, tf.RaggedTensor):
            found.append(tf.cast(part.nrows(), tf.int64))
        elif isinstance(part, tf.SparseTensor):
            found.append(part.dense_shape[0])
        elif isinstance(part, tf.Tensor) and part.shape.rank != 0:
            found.append(tf.shape(part, tf.int64)[0])
    return found


def between(batch: Any, begin: tf.Tensor, end: tf.Tensor) -> Any:
    """Returns some consecutive rows of a batch.

    Args:
        batch: The batch.
        begin: Number of the first row, an int64 scalar.
        end: Number of the row after the last one, likewise.

    Returns:
        A structure like `batch`. Scalars, and leaves that are no tensors, are
        as they were.
    """

    def cut(part: Any) -> Any:
        if isinstance(part, tf.SparseTensor):
            shape = part.dense_shape
            start = tf.concat([[begin], tf.zeros_like(shape)[1:]], 0)
            size = tf.concat([[end - begin], shape[1:]], 0)
            return tf.sparse.slice(part, start, size)
        if isinstance(part, tf.RaggedTensor) or (
            isinstance(part, tf.Tensor) and part.shape.rank != 0
        ):
            return part[begin:end]
        return part

    return tf.nest.map_structure(cut, batch)
