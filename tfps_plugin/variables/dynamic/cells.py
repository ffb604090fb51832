"""Cells of a shard: the rows of one table in one hash bucket.

Cells are numbered by bucket, and in a bucket by table; so are their rows.

Shape legend: N keys, R rows of the shard, M rows, C cells of the shard.
"""

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.ids import keys
from tfps_plugin.variables.dynamic.row_space import RowSpace


class Cells:
    """Cells of the buckets of a shard.

    All methods make operations on the current device.

    Attributes:
        space: Rows of all buckets.
        buckets: The buckets.
        starts: The first row of each cell, counted in the shard, int32.
        sizes: The number of rows of each cell, int32.
        tables: The number of the table of each cell, int32.
    """

    def __init__(self, space: RowSpace, buckets: range) -> None:
        """Numbers the cells of some buckets."""
        self.space = space
        self.buckets = buckets
        self.sizes = np.tile(
            np.array(space.rows_per_cell, np.int32), len(buckets)
        )
        self.starts = np.cumsum(self.sizes, dtype=np.int32) - self.sizes
        self.tables = np.tile(
            np.arange(space.num_tables, dtype=np.int32), len(buckets)
        )

    def __len__(self) -> int:
        return len(self.sizes)

    def of_keys(self, keys_N: tf.Tensor) -> tf.Tensor:
        """Returns the cell of each key, int32."""
        buckets_N = id_hashing.buckets_of(keys.ids_of(keys_N))
        buckets_N -= self.buckets.start
        tables_N = keys.tables_of(keys_N)
        if tables_N is None:
            return buckets_N
        return buckets_N * self.space.num_tables + tables_N

    def of_rows(self, rows_M: tf.Tensor) -> tf.Tensor:
        """Returns the cell of each row of the shard, int32."""
        buckets_M = rows_M // self.space.rows_per_bucket
        if self.space.num_tables == 1:
            return buckets_M
        tables_M = tf.searchsorted(
            tf.constant(self.space.offsets, tf.int32),
            rows_M % self.space.rows_per_bucket,
            side="right",
        )
        return buckets_M * self.space.num_tables + tables_M - 1

    def of_all_rows(self) -> tf.Tensor:
        """Returns the cell of each row of the shard, int32, shape `(R,)`."""
        return self.of_rows(
            tf.range(len(self.buckets) * self.space.rows_per_bucket)
        )

    def rows_of_tables(self, are_asked_T: tf.Tensor) -> tf.Tensor:
        """Returns the rows of some tables that are not reserved, int32.

        Args:
            are_asked_T: Whether each table is one of them.
        """
        are_asked_C = tf.gather(are_asked_T, self.tables)
        starts = self.starts + RowSpace.RESERVED
        ends = self.starts + self.sizes
        return tf.raw_ops.RaggedRange(
            starts=tf.boolean_mask(starts, are_asked_C),
            limits=tf.boolean_mask(ends, are_asked_C),
            deltas=tf.constant(1),
        ).rt_dense_values

    def starts_of(self, cells_N: tf.Tensor) -> tf.Tensor:
        """Returns the first row of each of some cells, int32."""
        if self.space.num_tables == 1:
            return cells_N * self.space.rows_per_bucket
        return tf.gather(self.starts, cells_N)

    def of_tables(self, values_T: tf.Tensor, cells_N: tf.Tensor) -> tf.Tensor:
        """Returns the value of the table of each of some cells.

        Args:
            values_T: A value for each table.
            cells_N: The cells, of any shape.
        """
        if self.space.num_tables == 1:
            return tf.fill(tf.shape(cells_N), values_T[0])
        return tf.gather(values_T, self.tables_of(cells_N))

    def tables_of(self, cells_N: tf.Tensor) -> tf.Tensor:
        """Returns the number of the table of each of some cells, int32."""
        return cells_N % self.space.num_tables

    def keys_of(self, ids_M: tf.Tensor, rows_M: tf.Tensor) -> tf.Tensor:
        """Returns the keys of ids that have some rows.

        Args:
            ids_M: The ids.
            rows_M: Their rows.
        """
        if self.space.num_tables == 1:
            return ids_M
        return keys.joined(ids_M, self.tables_of(self.of_rows(rows_M)))
