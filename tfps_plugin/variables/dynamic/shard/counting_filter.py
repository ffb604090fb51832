"""Counts of lookups in bounded memory, on the device of the code that uses it.

Each id has two counters among those of its bucket, and its count is the lower
of both (Cormode and Muthukrishnan, "An improved data stream summary: the
count-min sketch", 2005). From time to time all are halved, so that old lookups
are forgotten (Einziger et al., "TinyLFU", 2017).

Shape legend: N ids, R rows of the shard.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic import id_hashing
from tfps_plugin.variables.dynamic.row_space import RowSpace

# Counters for each row of the table.
COUNTERS_PER_ROW = 4
# Counters are halved after one lookup for so many of them. One in four is above
# zero then, and one in 20 new ids shares both of its counters with others.
_COUNTERS_PER_LOOKUP = 8
_NUM_HASHES = 2
_SEED = 0x666C_7472


class CountingFilter:
    """The counters of one shard, an int32 variable of shape `(R, 4)`.

    Threading: additions are atomic; halving may lose some that run meanwhile.
    """

    def __init__(
        self, counters: Any, first_bucket: int, space: RowSpace
    ) -> None:
        """Takes the variable.

        Args:
            counters: The variable.
            first_bucket: First bucket of the shard.
            space: Rows of all buckets.
        """
        self._counters = counters
        self._first_bucket = first_bucket
        self._per_bucket = space.rows_per_bucket * COUNTERS_PER_ROW

    @property
    def most_lookups(self) -> int:
        """Number of lookups after which counters should be halved."""
        size: int = self._counters.shape.num_elements()
        return size // _COUNTERS_PER_LOOKUP

    def counted(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Counts a lookup of each id; returns its count, int32, `(N,)`."""
        buckets_N = id_hashing.buckets_of(ids_N) - self._first_bucket
        drawn_N2 = id_hashing.uniform(ids_N, _NUM_HASHES, _SEED)
        offsets_N2 = tf.cast(drawn_N2 * float(self._per_bucket), tf.int32)
        # Rounding could reach the next bucket.
        offsets_N2 = tf.minimum(offsets_N2, self._per_bucket - 1)
        places_N2 = buckets_N[:, None] * self._per_bucket + offsets_N2
        places = tf.stack(
            [places_N2 // COUNTERS_PER_ROW, places_N2 % COUNTERS_PER_ROW], -1
        )
        added = tf.raw_ops.ResourceScatterNdAdd(
            ref=self._counters.handle,
            indices=places,
            updates=tf.ones_like(places_N2),
        )
        with tf.control_dependencies([added]):
            counts_N2 = tf.raw_ops.ResourceGatherNd(
                resource=self._counters.handle, indices=places, dtype=tf.int32
            )
        return tf.reduce_min(counts_N2, 1)

    def halve(self) -> tf.Operation:
        """Halves all counters."""
        value = tf.raw_ops.ReadVariableOp(
            resource=self._counters.handle, dtype=tf.int32
        )
        return tf.raw_ops.AssignVariableOp(
            resource=self._counters.handle, value=value // 2
        )
