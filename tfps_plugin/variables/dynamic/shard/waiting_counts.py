"""Exact counts of lookups, on the device of the code that uses them.

Each id that waits for a row has an entry: the id, its count, and a stamp that
tells which entries of its set are older. A hash of the id says to which set of
its cell it belongs. A full set forgets its oldest entry.

Shape legend: K distinct keys, R rows of the shard, G rows and W entries of a
set, M keys among those given, T tables.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin.exports.first_rows import start_of
from tfps_plugin.variables.dynamic.cells import Cells
from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.ids import keys
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
_START = start_of(0x7761_6974)


class WaitingCounts:
    """The entries of one shard, an int64 variable of shape `(R, 8)`.

    A free entry has count and stamp zero. The caller lets only one method run
    at a time.
    """

    def __init__(self, entries: Any, cells: Cells) -> None:
        """Takes the variable.

        Args:
            entries: The variable.
            cells: The cells of the shard.
        """
        self._entries = entries
        self._cells = cells

    def counted(
        self, keys_K: tf.Tensor, most: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Counts a lookup of each key.

        Args:
            keys_K: Distinct keys.
            most: A count that becomes no larger, below 2**20.

        Returns:
            The count of each key, int64, shape `(K,)`; and the number of ids
            of each table that a set has forgotten, or had no entry for, int64,
            shape `(T,)`.
        """
        first_K = self._first_rows(keys_K)
        entries_KW, are_its_KW = self._find(keys_K, first_K)
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
            num_forgotten_T = self._begin(
                tf.gather_nd(keys_K, new_M1),
                tf.gather_nd(first_K, new_M1),
                tf.gather_nd(values_K, new_M1),
            )
        return counts_K, num_forgotten_T

    def forget(self, keys_K: tf.Tensor) -> tf.Operation:
        """Forgets keys, which need no entries any more."""
        first_K = self._first_rows(keys_K)
        _, are_its_KW = self._find(keys_K, first_K)
        places_M2 = tf.boolean_mask(
            _places(first_K, tf.argmax(are_its_KW, 1)),
            tf.reduce_any(are_its_KW, 1),
        )
        return self._write_values(
            places_M2, tf.zeros([tf.shape(places_M2)[0]], tf.int64)
        )

    def _begin(
        self, keys_M: tf.Tensor, first_M: tf.Tensor, values_M: tf.Tensor
    ) -> tf.Tensor:
        """Gives keys the oldest entries; returns how many were forgotten."""
        entries_MW, _ = self._find(keys_M, first_M)
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
                updates=tf.boolean_mask(keys.ids_of(keys_M), have_room_M),
            ),
            self._write_values(
                tf.boolean_mask(places_M2, have_room_M),
                tf.boolean_mask(values_M, have_room_M),
            ),
        ]
        with tf.control_dependencies(written):
            forgotten_M = tf.boolean_mask(keys_M, ~have_room_M | (before_M > 0))
            return keys.counts_of(forgotten_M, self._cells.space.num_tables)

    def _first_rows(self, keys_K: tf.Tensor) -> tf.Tensor:
        """Returns the first row of the set of each key, int32."""
        cells_K = self._cells.of_keys(keys_K)
        nums_K = tf.gather(self._cells.sizes, cells_K) // _ROWS_PER_SET
        drawn_K = id_hashing.uniform(keys.ids_of(keys_K), 1, _START)[:, 0]
        sets_K = tf.cast(drawn_K * tf.cast(nums_K, tf.float32), tf.int32)
        # Rounding could reach the next cell.
        sets_K = tf.minimum(sets_K, nums_K - 1)
        return self._cells.starts_of(cells_K) + sets_K * _ROWS_PER_SET

    def _find(
        self, keys_K: tf.Tensor, first_K: tf.Tensor
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
        are_its_KW = (entry_ids_KW == keys.ids_of(keys_K)[:, None]) & (
            entries_KW > 0
        )
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
