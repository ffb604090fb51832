"""Counts of lookups in bounded memory, on the device of the code that uses it.

Each id has two counters among those of its cell, and its count is the lower
of both (Cormode and Muthukrishnan, "An improved data stream summary: the
count-min sketch", 2005). From time to time all are halved, so that old lookups
are forgotten (Einziger et al., "TinyLFU", 2017).

Shape legend: N keys, R rows of the shard, T tables.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin.exports.first_rows import start_of
from tfps_plugin.variables.dynamic.cells import Cells
from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.ids import keys

# Counters for each row of the table.
COUNTERS_PER_ROW = 4
# Counters are halved after one lookup for so many of them. One in four is above
# zero then, and one in 20 new ids shares both of its counters with others.
_COUNTERS_PER_LOOKUP = 8
_NUM_HASHES = 2
_START = start_of(0x666C_7472)


class CountingFilter:
    """The counters of one shard, an int32 variable of shape `(R, 4)`.

    Threading: additions are atomic; halving may lose some that run meanwhile.
    """

    def __init__(self, counters: Any, cells: Cells) -> None:
        """Takes the variable.

        Args:
            counters: The variable.
            cells: The cells of the shard.
        """
        self._counters = counters
        self._cells = cells

    @property
    def most_lookups(self) -> list[int]:
        """Number of lookups, by table, after which counters are halved."""
        size = len(self._cells.buckets) * COUNTERS_PER_ROW
        return [
            size * num_rows // _COUNTERS_PER_LOOKUP
            for num_rows in self._cells.space.rows_per_cell
        ]

    def counted(self, keys_N: tf.Tensor) -> tf.Tensor:
        """Counts a lookup of each key; returns its count, int32, `(N,)`."""
        cells_N = self._cells.of_keys(keys_N)
        sizes_N1 = (tf.gather(self._cells.sizes, cells_N) * COUNTERS_PER_ROW)[
            :, None
        ]
        drawn_N2 = id_hashing.uniform(keys.ids_of(keys_N), _NUM_HASHES, _START)
        offsets_N2 = tf.cast(drawn_N2 * tf.cast(sizes_N1, tf.float32), tf.int32)
        # Rounding could reach the next cell.
        offsets_N2 = tf.minimum(offsets_N2, sizes_N1 - 1)
        firsts_N = self._cells.starts_of(cells_N) * COUNTERS_PER_ROW
        places_N2 = firsts_N[:, None] + offsets_N2
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

    def halve(self, are_due_T: tf.Tensor) -> tf.Tensor:
        """Halves all counters of some tables."""
        # Only those, so that no lookup of another table is lost.
        due_S = tf.where(tf.gather(are_due_T, self._cells.tables))[:, 0]

        def halve_one(number: tf.Tensor) -> list[tf.Tensor]:
            cell = due_S[number]
            first = tf.gather(self._cells.starts, cell)
            rows_M = first + tf.range(tf.gather(self._cells.sizes, cell))
            before = tf.raw_ops.ResourceGather(
                resource=self._counters.handle, indices=rows_M, dtype=tf.int32
            )
            halved = tf.raw_ops.ResourceScatterUpdate(
                resource=self._counters.handle,
                indices=rows_M,
                updates=before // 2,
            )
            with tf.control_dependencies([halved]):
                return [number + 1]

        # One cell at a time: no copy of the whole shard.
        (number,) = tf.while_loop(
            lambda number: number < tf.size(due_S),
            halve_one,
            [tf.constant(0)],
            parallel_iterations=1,
        )
        return number
