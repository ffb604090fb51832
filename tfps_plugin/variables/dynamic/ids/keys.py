"""Ids of one table or of several, in one tensor.

For a table that is alone, keys are its ids, shape `(N,)`. For tables that are
stacked, each key is an id and the number of its table, shape `(N, 2)`. Both may
be gathered, masked and joined along their first axis.
"""

import tensorflow as tf


def joined(ids_N: tf.Tensor, tables_N: tf.Tensor) -> tf.Tensor:
    """Returns keys of tables that are stacked, int64, shape `(N, 2)`."""
    return tf.stack([ids_N, tf.cast(tables_N, tf.int64)], 1)


def sorted_by_table(ids_N: tf.Tensor, counts_T: tf.Tensor) -> tf.Tensor:
    """Returns keys of ids, of which those of a table are together.

    Args:
        ids_N: The ids of the first table, then those of the next one, ...
        counts_T: The number of ids of each table.
    """
    # `tf.repeat` would make a matrix of the largest count.
    ends_T = tf.cumsum(tf.cast(counts_T, tf.int32))
    tables_N = tf.searchsorted(ends_T, tf.range(tf.size(ids_N)), side="right")
    return joined(ids_N, tables_N)


def ids_of(keys_N: tf.Tensor) -> tf.Tensor:
    """Returns the ids of keys, int64, shape `(N,)`."""
    return keys_N if keys_N.shape.rank == 1 else keys_N[:, 0]


def tables_of(keys_N: tf.Tensor) -> tf.Tensor | None:
    """Returns the number of the table of each key, int32; None: only one."""
    if keys_N.shape.rank == 1:
        return None
    return tf.cast(keys_N[:, 1], tf.int32)


def num_of(keys_N: tf.Tensor) -> tf.Tensor:
    """Returns the number of keys, an int32 scalar."""
    return tf.shape(keys_N)[0]


def counts_of(
    keys_N: tf.Tensor, num_tables: int, are_counted_N: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns the number of keys of each table, int64, shape `(T,)`.

    Args:
        keys_N: The keys.
        num_tables: Number of tables.
        are_counted_N: Which of them are counted; None: all.
    """
    tables_N = tables_of(keys_N)
    if tables_N is None:
        if are_counted_N is None:
            return tf.cast(num_of(keys_N), tf.int64)[None]
        return tf.math.count_nonzero(are_counted_N)[None]
    weights = tf.zeros([0], tf.int64)
    if are_counted_N is not None:
        weights = tf.cast(are_counted_N, tf.int64)
    # `tf.math.bincount` has ten operations for one.
    return tf.raw_ops.DenseBincount(
        input=tables_N, size=num_tables, weights=weights
    )
