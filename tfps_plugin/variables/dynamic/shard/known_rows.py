"""Known rows of a shard: index, records, and the rows that are free.

Shape legend: N ids, R rows of the shard.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic import id_hashing
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

_MOST_VERSIONS = 1 << 30
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
        index: Rows by id.
        free: Rows without ids.
        tallies: Numbers of the directory.
        buckets: Hash buckets of the shard.
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
        self._space = rules.space
        self._parts = parts
        self.num_rows = len(rows)
        self.buckets = rules.space.buckets(rows)
        spare = 1.0 if rules.eviction is None else _PLACES_TO_SPARE
        self.index = HashIndex(unique_name, int(spare * len(rows)))
        self.free = FreeRows(unique_name, len(self.buckets), rules.space)
        self.tallies = Tallies(unique_name)

    def local_buckets_of(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns the buckets of ids, counted in the shard."""
        return id_hashing.buckets_of(ids_N) - self.buckets.start

    def rows_with_lowest(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns the rows of any ids, -1 where there is none."""
        rows_N, _ = self.index.look_up(ids_N)
        fixed_N = self.fixed_rows(ids_N)
        are_used_N = self.recorded(fixed_N, IS_USED) > 0
        return tf.where(
            ids_N < FIRST_KEY, tf.where(are_used_N, fixed_N, -1), rows_N
        )

    def fixed_rows(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns the row of each of the lowest ids; any row for others."""
        buckets_N = self.local_buckets_of(ids_N)
        offsets_N = tf.minimum(ids_N - tf.int64.min, RowSpace.NUM_LOWEST - 1)
        offsets_N = tf.cast(tf.maximum(offsets_N, 0), tf.int32)
        return (
            buckets_N * self._space.rows_per_bucket
            + RowSpace.LOWEST
            + offsets_N
        )

    def fill(self, numbers: dict[int, tf.Tensor] | None = None) -> tf.Tensor:
        """Fills the index and the lists of free rows from the records.

        Args:
            numbers: Tallies to begin with.
        """
        space = self._space
        records_R2 = tf.raw_ops.ReadVariableOp(
            resource=self._parts.records.handle, dtype=tf.int64
        )
        records_R2 = tf.ensure_shape(records_R2, [self.num_rows, NUM_COLUMNS])
        offsets_R = tf.tile(
            tf.range(space.rows_per_bucket), [len(self.buckets)]
        )
        are_used_R = (records_R2[:, IS_USED] > 0) & (
            offsets_R >= space.RESERVED
        )
        used_M1 = tf.where(are_used_R)
        done: list[Any] = [
            self.index.fill(
                tf.gather_nd(records_R2[:, ID], used_M1),
                tf.cast(used_M1[:, 0], tf.int32),
            ),
            *self.free.reset(are_used_R),
            self.tallies.begin(
                {
                    **(numbers or {}),
                    tallies.KEYS: tf.size(used_M1, out_type=tf.int64),
                }
            ),
        ]
        # Not beside the read above, which would make it copy the records.
        with tf.control_dependencies(done):
            forgotten = self._forget_versions()
        with tf.control_dependencies([forgotten]):
            version = tf.random.uniform(
                [], maxval=_MOST_VERSIONS, dtype=tf.int32
            )
            written = self.write_version(tf.cast(version, tf.int64))
        with tf.control_dependencies(written):
            return tf.constant(True)

    def _forget_versions(self) -> tf.Operation:
        """Erases the versions of shards that began at other buckets.

        A table may be cut as it was before, on a parameter server that still
        has the directory of that time.
        """
        size, stride = len(self.buckets), self._space.rows_per_bucket
        return tf.raw_ops.ResourceScatterUpdate(
            resource=self._parts.records.handle,
            indices=tf.range(size) * stride + RowSpace.ABSENT,
            updates=tf.zeros([size, NUM_COLUMNS], tf.int64),
        )

    def recorded(self, rows_N: tf.Tensor, column: int) -> tf.Tensor:
        """Returns what the records say of rows; see `shard_parts`."""
        return tf.raw_ops.ResourceGatherNd(
            resource=self._parts.records.handle,
            indices=tf.stack([rows_N, tf.fill(tf.shape(rows_N), column)], 1),
            dtype=tf.int64,
        )

    def recorded_version(self) -> tf.Tensor:
        """Returns the version of the records."""
        return tf.raw_ops.ResourceGatherNd(
            resource=self._parts.records.handle,
            indices=tf.constant([RowSpace.ABSENT, ID], tf.int32),
            dtype=tf.int64,
        )

    def write_version(self, version: tf.Tensor) -> list[Any]:
        """Writes the version to the directory and the records."""
        return [
            self.index.write_version(version),
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._parts.records.handle,
                indices=tf.constant([RowSpace.ABSENT], tf.int32),
                updates=tf.stack([[version, tf.constant(0, tf.int64)]]),
            ),
        ]
