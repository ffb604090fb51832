"""Hashes of ids: their buckets, and random numbers that depend on them.

The hash is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014). It maps any pattern of ids,
such as consecutive or even ones, to bits that look random, and different ids
to different values.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.exports.first_rows import FIRST_FACTOR
from tfps_plugin.exports.first_rows import FRACTION_BITS
from tfps_plugin.exports.first_rows import GOLDEN
from tfps_plugin.exports.first_rows import SECOND_FACTOR
from tfps_plugin.exports.first_rows import SHIFTS
from tfps_plugin.exports.first_rows import steps_of
from tfps_plugin.variables.dynamic.row_space import NUM_BUCKETS

_BUCKET_BITS = NUM_BUCKETS.bit_length() - 1


def mixed(numbers: tf.Tensor) -> tf.Tensor:
    """Returns the hash of unsigned 64-bit numbers, of the same shape."""
    bits = numbers
    first, second, last = SHIFTS
    for shift, factor in ((first, FIRST_FACTOR), (second, SECOND_FACTOR)):
        bits = tf.bitwise.bitwise_xor(bits, _shifted(bits, shift))
        bits = bits * tf.constant(np.uint64(factor))
    return tf.bitwise.bitwise_xor(bits, _shifted(bits, last))


def spread(ids: tf.Tensor) -> tf.Tensor:
    """Returns numbers whose lowest bits look random; one for each id.

    Cheaper than `mixed`, and good enough for places in a hash table: what ids
    differ in is folded down, moved up by a product, and folded down again.

    Args:
        ids: Any int64.
    """
    bits = tf.bitcast(ids, tf.uint64)
    bits = tf.bitwise.bitwise_xor(bits, _shifted(bits, 32))
    bits = bits * tf.constant(np.uint64(GOLDEN))
    return tf.bitcast(
        tf.bitwise.bitwise_xor(bits, _shifted(bits, 32)), tf.int64
    )


def buckets_of(ids: tf.Tensor) -> tf.Tensor:
    """Returns the bucket of each id, int32, of the same shape.

    Args:
        ids: Any int64.
    """
    bits = mixed(tf.bitcast(ids, tf.uint64) + tf.constant(np.uint64(GOLDEN)))
    return tf.cast(_shifted(bits, 64 - _BUCKET_BITS), tf.int32)


def uniform(
    ids_N: tf.Tensor, num_columns: int, starts_N: tf.Tensor
) -> tf.Tensor:
    """Returns random numbers that depend on ids, columns and a start alone.

    Args:
        ids_N: Any int64.
        num_columns: Number of columns, C.
        starts_N: Result of `first_rows.start_of` for a seed, uint64, of each id
            or of all; different ones give other numbers.

    Returns:
        Float32 above zero and below one, shape `(N, C)`.
    """
    # Hashed once before columns are added: otherwise the numbers of an id
    # would be those of the next id, one column further.
    bits_N = mixed(tf.bitcast(ids_N, tf.uint64) + starts_N)
    # As an array: of a list of large numbers, TensorFlow makes floats first.
    steps_C = tf.constant(steps_of(num_columns))
    bits_NC = mixed(bits_N[:, None] + steps_C[None, :])
    # The highest bits are exact in a float32; the half keeps away from zero.
    whole = tf.cast(
        tf.bitcast(_shifted(bits_NC, 64 - FRACTION_BITS), tf.int64),
        tf.float32,
    )
    return (whole + 0.5) * 2.0**-FRACTION_BITS


def _shifted(bits: tf.Tensor, count: int) -> Any:
    return tf.bitwise.right_shift(bits, tf.constant(count, tf.uint64))
