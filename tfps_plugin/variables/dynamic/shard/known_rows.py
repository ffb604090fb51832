"""Known rows of a shard: index, records, and the rows that are free.

Shape legend: N keys, R rows of the shard, M used ones, T tables.
"""

import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.dynamic.cells import Cells
from tfps_plugin.variables.dynamic.ids import keys
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.free_rows import FreeRows
from tfps_plugin.variables.dynamic.shard.hash_index import FIRST_KEY
from tfps_plugin.variables.dynamic.shard.hash_index import HashIndex
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_parts import ID
from tfps_plugin.variables.dynamic.shard.shard_parts import IS_USED
from tfps_plugin.variables.dynamic.shard.shard_parts import NUM_COLUMNS
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.dynamic.shard.tallies import Tallies
from tfps_plugin.variables.dynamic.whole_functions import WholeFunction

_NUM_VERSIONS = 1 << 30
# Removed keys keep their places, so a table that evicts has some to spare.
_PLACES_TO_SPARE = 1.5


class KnownRows:
    """Ids that have rows, and rows that have no ids.

    The records, an ordinary variable, tell what the others know too. Both have
    a version; where the two differ, others have written the records, and `fill`
    is due.

    All methods make operations on the current device. The caller holds the
    lock of the shard for those that change something.

    Attributes:
        index: Rows by key.
        free: Rows without ids.
        tallies: Numbers of the directory.
        cells: Cells of the shard.
        num_rows: Number of rows of the shard.
    """

    def __init__(
        self, unique_name: str, rows: range, parts: ShardParts, rules: Rules
    ) -> None:
        """Describes them; `fill` makes them.

        Args:
            unique_name: A name that nothing else on the task has.
            rows: Rows of the shard, counted in the table.
            parts: Their variables.
            rules: What all shards have in common.
        """
        self._unique_name = unique_name
        self._space = rules.space
        self._parts = parts
        self.num_rows = len(rows)
        self.cells = Cells(rules.space, rules.space.buckets(rows))
        spare = 1.0 if rules.eviction is None else _PLACES_TO_SPARE
        num_buckets = len(self.cells.buckets)
        self.index = HashIndex(
            unique_name,
            [int(spare * num_buckets * n) for n in rules.space.rows_per_cell],
        )
        self.free = FreeRows(unique_name, self.cells)
        self.tallies = Tallies(unique_name, rules.space.num_tables)
        self._filled = WholeFunction(self._fill)
        self._refilled = WholeFunction(self._refill)

    def rows_with_lowest(self, keys_N: tf.Tensor) -> tf.Tensor:
        """Returns the rows of any keys, -1 where there is none."""
        rows_N, _ = self.index.look_up(keys_N)
        fixed_N = self.fixed_rows(keys_N)
        are_used_N = self.recorded(fixed_N, IS_USED) > 0
        return tf.where(
            keys.ids_of(keys_N) < FIRST_KEY,
            tf.where(are_used_N, fixed_N, -1),
            rows_N,
        )

    def fixed_rows(self, keys_N: tf.Tensor) -> tf.Tensor:
        """Returns the row of each of the lowest ids; any row for others."""
        starts_N = self.cells.starts_of(self.cells.of_keys(keys_N))
        offsets_N = tf.minimum(
            keys.ids_of(keys_N) - tf.int64.min, RowSpace.NUM_LOWEST - 1
        )
        offsets_N = tf.cast(tf.maximum(offsets_N, 0), tf.int32)
        return starts_N + RowSpace.LOWEST + offsets_N

    def fill(self) -> tf.Tensor:
        """Fills the index and the lists of free rows from the records."""
        return self._filled()

    def _fill(self) -> tf.Tensor:
        records_R2 = tf.raw_ops.ReadVariableOp(
            resource=self._parts.records.handle, dtype=tf.int64
        )
        records_R2 = tf.ensure_shape(records_R2, [self.num_rows, NUM_COLUMNS])
        rows_R = tf.range(self.num_rows)
        offsets_R = rows_R - self.cells.starts_of(self.cells.of_all_rows())
        are_used_R = (records_R2[:, IS_USED] > 0) & (
            offsets_R >= RowSpace.RESERVED
        )
        rows_M = tf.boolean_mask(rows_R, are_used_R)
        keys_M = self.cells.keys_of(
            tf.boolean_mask(records_R2[:, ID], are_used_R), rows_M
        )
        done: list[Any] = [
            *self.index.fill(keys_M, rows_M),
            *self.free.reset(are_used_R),
            self.tallies.begin(
                {tallies.KEYS: keys.counts_of(keys_M, self._space.num_tables)}
            ),
        ]
        # Not beside the read above, which would make it copy the records.
        with tf.control_dependencies(done):
            forgotten = self._forget_versions()
        with tf.control_dependencies([forgotten]):
            written = self._write_versions(self._new_versions())
        with tf.control_dependencies(written):
            return tf.constant(True)

    def _new_versions(self) -> tf.Tensor:
        """Returns versions that no records have which others may write."""
        # Not a random number: if the program sets a seed, all tables would draw
        # the same ones. Each lookup that makes rows adds one, but later.
        salts_T = [
            zlib.crc32(f"{self._unique_name}/{table}".encode())
            for table in range(self._space.num_tables)
        ]
        microseconds = tf.cast(tf.timestamp() * 1e6, tf.int64)
        return (microseconds + tf.constant(salts_T, tf.int64)) % _NUM_VERSIONS

    def refill(self, are_due_T: tf.Tensor) -> tf.Tensor:
        """Fills the index of some tables anew, without removed keys."""
        return self._refilled(are_due_T)

    def _refill(self, are_due_T: tf.Tensor) -> tf.Tensor:
        rows_M = self.cells.rows_of_tables(are_due_T)
        records_M2 = tf.raw_ops.ResourceGather(
            resource=self._parts.records.handle, indices=rows_M, dtype=tf.int64
        )
        are_used_M = records_M2[:, IS_USED] > 0
        rows_M = tf.boolean_mask(rows_M, are_used_M)
        ids_M = tf.boolean_mask(records_M2[:, ID], are_used_M)
        keys_M = self.cells.keys_of(ids_M, rows_M)
        counts_T = keys.counts_of(keys_M, self._space.num_tables)
        before_T = self.tallies.read()[tallies.KEYS]
        done: list[Any] = [
            *self.index.refill(are_due_T, keys_M, rows_M),
            self.tallies.add(
                {tallies.KEYS: tf.where(are_due_T, counts_T - before_T, 0)}
            ),
        ]
        with tf.control_dependencies(done):
            # The records are as they were.
            written = self.index.write_versions(self.recorded_versions())
        with tf.control_dependencies(written):
            return tf.constant(True)

    def _forget_versions(self) -> tf.Operation:
        """Erases the versions of shards that began at other buckets.

        A table may be cut as it was before, on a parameter server that still
        has the directory of that time.
        """
        return tf.raw_ops.ResourceScatterUpdate(
            resource=self._parts.records.handle,
            indices=self.cells.starts_of(tf.range(len(self.cells)))
            + RowSpace.ABSENT,
            updates=tf.zeros([len(self.cells), NUM_COLUMNS], tf.int64),
        )

    def recorded(self, rows_N: tf.Tensor, column: int) -> tf.Tensor:
        """Returns what the records say of rows; see `shard_parts`."""
        return tf.raw_ops.ResourceGatherNd(
            resource=self._parts.records.handle,
            indices=tf.stack([rows_N, tf.fill(tf.shape(rows_N), column)], 1),
            dtype=tf.int64,
        )

    def recorded_versions(self) -> tf.Tensor:
        """Returns the version of the records of each table, `(T,)`.

        Those of one table may be restored without the others.
        """
        return self.recorded(tf.constant(self._version_rows), ID)

    def write_next_versions(self) -> list[Any]:
        """Tells those who look rows up that the records have changed."""
        return self._write_versions(self.recorded_versions() + 1)

    def _write_versions(self, versions_T: tf.Tensor) -> list[Any]:
        """Writes versions to the directory and the records."""
        return [
            *self.index.write_versions(versions_T),
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._parts.records.handle,
                indices=tf.constant(self._version_rows),
                updates=tf.stack([versions_T, tf.zeros_like(versions_T)], 1),
            ),
        ]

    @property
    def _version_rows(self) -> np.ndarray:
        # Of the first bucket of the shard.
        rows: np.ndarray = (
            self.cells.starts[: self._space.num_tables] + RowSpace.ABSENT
        )
        return rows
