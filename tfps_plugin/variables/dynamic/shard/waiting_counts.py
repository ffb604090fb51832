"""Exact counts of lookups, on the device of the code that uses them.

Each id that waits for a row has an entry: the id, its count, and a stamp that
tells which entries of its set are older. A hash of the id says to which set of
its bucket it belongs. A full set forgets its oldest entry.

Shape legend: K distinct ids, R rows of the shard, G rows of a set, W entries of
a set, M ids among those given.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic import id_hashing
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard.free_rows import ranked

# Entries in each row of the variable: first their ids, then counts and stamps.
_ENTRIES_PER_ROW = 4
NUM_COLUMNS = 2 * _ENTRIES_PER_ROW
# Even if as many ids wait as the table has rows, a set has 4 on the average,
# and one in a million sets has more than 16.
_ROWS_PER_SET = 4
# Number of entries of a set.
ENTRIES_PER_SET = _ROWS_PER_SET * _ENTRIES_PER_ROW
# Counts are below it. An entry keeps count + stamp * _STAMP.
_STAMP = 1 << 20
_SEED = 0x7761_6974


class WaitingCounts:
    """The entries of one shard, an int64 variable of shape `(R, 8)`.

    A free entry has count and stamp zero. The caller lets only one method run
    at a time.
    """

    def __init__(
        self, entries: Any, first_bucket: int, space: RowSpace
    ) -> None:
        """Takes the variable.

        Args:
            entries: The variable.
            first_bucket: First bucket of the shard.
            space: Rows of all buckets.
        """
        self._entries = entries
        self._first_bucket = first_bucket
        self._rows_per_bucket = space.rows_per_bucket
        self._sets_per_bucket = space.rows_per_bucket // _ROWS_PER_SET

    def counted(
        self, ids_K: tf.Tensor, most: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Counts a lookup of each id.

        Args:
            ids_K: Distinct ids.
            most: A count that becomes no larger, below 2**20.

        Returns:
            The count of each id, int64, shape `(K,)`; and the number of ids
            that a set has forgotten, or had no entry for, an int64 scalar.
        """
        first_K = self._first_rows(ids_K)
        entries_KW, are_its_KW = self._find(ids_K, first_K)
        # All ids of one lookup that share a set have the same stamp.
        stamps_K = tf.reduce_max(entries_KW, 1) // _STAMP + 1
        are_known_K = tf.reduce_any(are_its_KW, 1)
        # A free entry counts zero.
        counts_K = 1 + tf.reduce_sum(
            tf.where(are_its_KW, entries_KW % _STAMP, 0), 1
        )
        counts_K = tf.minimum(counts_K, most)
        values_K = stamps_K * _STAMP + counts_K
        places_K2 = _places(first_K, tf.argmax(are_its_KW, 1))
        known_M1 = tf.where(are_known_K)
        noted = self._write_values(
            tf.gather_nd(places_K2, known_M1), tf.gather_nd(values_K, known_M1)
        )
        new_M1 = tf.where(~are_known_K)
        with tf.control_dependencies([noted]):
            num_forgotten = self._begin(
                tf.gather_nd(ids_K, new_M1),
                tf.gather_nd(first_K, new_M1),
                tf.gather_nd(values_K, new_M1),
            )
        return counts_K, num_forgotten

    def forget(self, ids_K: tf.Tensor) -> tf.Operation:
        """Forgets ids, which need no entries any more."""
        first_K = self._first_rows(ids_K)
        _, are_its_KW = self._find(ids_K, first_K)
        places_M2 = tf.boolean_mask(
            _places(first_K, tf.argmax(are_its_KW, 1)),
            tf.reduce_any(are_its_KW, 1),
        )
        return self._write_values(
            places_M2, tf.zeros([tf.shape(places_M2)[0]], tf.int64)
        )

    def _begin(
        self, ids_M: tf.Tensor, first_M: tf.Tensor, values_M: tf.Tensor
    ) -> tf.Tensor:
        """Gives ids the oldest entries; returns how many were forgotten."""
        entries_MW, _ = self._find(ids_M, first_M)
        oldest_MW = tf.argsort(entries_MW, axis=1, stable=True)
        order_M, _, ranks_M = ranked(first_M)
        ranks_M = tf.gather(ranks_M, tf.math.invert_permutation(order_M))
        ways_M = tf.gather(
            oldest_MW,
            tf.minimum(ranks_M, ENTRIES_PER_SET - 1),
            batch_dims=1,
        )
        before_M = tf.gather(entries_MW, ways_M, batch_dims=1)
        # Entries of this lookup stay.
        have_room_M = (ranks_M < ENTRIES_PER_SET) & (
            before_M // _STAMP < values_M // _STAMP
        )
        places_M2 = _places(first_M, ways_M)
        written = [
            tf.raw_ops.ResourceScatterNdUpdate(
                ref=self._entries.handle,
                indices=tf.boolean_mask(places_M2, have_room_M),
                updates=tf.boolean_mask(ids_M, have_room_M),
            ),
            self._write_values(
                tf.boolean_mask(places_M2, have_room_M),
                tf.boolean_mask(values_M, have_room_M),
            ),
        ]
        with tf.control_dependencies(written):
            return tf.math.count_nonzero(~have_room_M | (before_M > 0))

    def _first_rows(self, ids_K: tf.Tensor) -> tf.Tensor:
        """Returns the first row of the set of each id, int32."""
        buckets_K = id_hashing.buckets_of(ids_K) - self._first_bucket
        drawn_K = id_hashing.uniform(ids_K, 1, _SEED)[:, 0]
        sets_K = tf.cast(drawn_K * float(self._sets_per_bucket), tf.int32)
        # Rounding could reach the next bucket.
        sets_K = tf.minimum(sets_K, self._sets_per_bucket - 1)
        return buckets_K * self._rows_per_bucket + sets_K * _ROWS_PER_SET

    def _find(
        self, ids_K: tf.Tensor, first_K: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns entries without ids, and where the entry of each id is."""
        rows_KG = first_K[:, None] + tf.range(_ROWS_PER_SET)[None, :]
        found = tf.raw_ops.ResourceGather(
            resource=self._entries.handle, indices=rows_KG, dtype=tf.int64
        )
        shape = [-1, ENTRIES_PER_SET]
        # Columns are told apart after the rows of a set are.
        entry_ids_KW = tf.reshape(found[:, :, :_ENTRIES_PER_ROW], shape)
        entries_KW = tf.reshape(found[:, :, _ENTRIES_PER_ROW:], shape)
        are_its_KW = (entry_ids_KW == ids_K[:, None]) & (entries_KW > 0)
        return entries_KW, are_its_KW

    def _write_values(
        self, places_M2: tf.Tensor, values_M: tf.Tensor
    ) -> tf.Operation:
        return tf.raw_ops.ResourceScatterNdUpdate(
            ref=self._entries.handle,
            indices=places_M2 + tf.constant([0, _ENTRIES_PER_ROW]),
            updates=values_M,
        )


def _places(first_K: tf.Tensor, ways_K: tf.Tensor) -> tf.Tensor:
    """Returns rows, and columns of the ids, of entries of some sets."""
    ways_K = tf.cast(ways_K, tf.int32)
    return tf.stack(
        [first_K + ways_K // _ENTRIES_PER_ROW, ways_K % _ENTRIES_PER_ROW], 1
    )
