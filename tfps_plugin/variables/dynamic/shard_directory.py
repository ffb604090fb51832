"""Directory of one shard: the row of each id, on the parameter server.

The directory is TensorFlow's own hash table, beside the rows. What it knows is
also in an ordinary variable, the records, which is saved, restored and moved
with the rows. If the records are not those that the directory has written
last, for example after a restore or on another ps, the next lookup builds the
directory anew.

Shape legend: N distinct ids, R rows of the shard, B buckets of the shard, C
rows of a bucket.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic import id_hashing
from tfps_plugin.variables.dynamic.initial_rows import InitialRows
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.lookup import graph_checks

# Columns of the records.
ID = 0
# Seconds since 1970 when a step last looked the row up; 0 for a free row.
SEEN = 1
NUM_COLUMNS = 2

# Keys that are no ids: the lowest numbers of int64. Ids of that value have
# rows of their own.
_LOWEST = tf.int64.min
_EMPTY = _LOWEST
_DELETED = _LOWEST + 1
_VERSION = _LOWEST + 2
_FIRST_KEY = _LOWEST + RowSpace.NUM_LOWEST

# A hash table this full is still fast. TensorFlow's own limit is 0.8.
_LOAD = 0.75
_MOST_VERSIONS = 1 << 30


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """Rows of ids.

    Attributes:
        rows_N: Row numbers of the shard, int32. Ids without a row have that
            of `RowSpace.ABSENT` in the first bucket of the shard.
        are_present_N: Whether each id has a row.
    """

    rows_N: tf.Tensor
    are_present_N: tf.Tensor

    @property
    def tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The arguments by which it is made again."""
        return self.rows_N, self.are_present_N


class ShardDirectory:
    """Finds and makes rows of one shard, in code that is placed on its ps.

    Guarantees: two lookups that meet a new id at once make one row of it. A
    lookup that finds a row finds it with its first value or a later one.
    A lookup that makes no rows takes no lock.
    """

    def __init__(
        self,
        name: str,
        unique_name: str,
        rows: range,
        space: RowSpace,
        table: Any,
        records: Any,
        initial: InitialRows,
        followers: Sequence[Any] = (),
    ) -> None:
        """Describes a directory; makes nothing yet.

        Args:
            name: Name of the table, for messages.
            unique_name: A name that nothing else on the ps has.
            rows: Rows of the shard, counted in the table.
            space: Rows of all buckets.
            table: The variable of the shard's rows.
            records: The variable of their records, int64, shape `(R, 2)`.
            initial: First rows of ids.
            followers: Variables of slots whose rows begin as those of the
                table.
        """
        self._followers = followers
        self._name = name
        self._unique_name = unique_name
        self._rows = rows
        self._space = space
        self._buckets = space.buckets(rows)
        self._table = table
        self._records = records
        self._initial = initial

    def find(self, ids_N: tf.Tensor, *, makes_rows: bool) -> Found:
        """Finds the rows of ids.

        Args:
            ids_N: Distinct ids of the shard, int64.
            makes_rows: Whether ids without a row get one.
        """
        rows_N, version = self._look_up(ids_N)
        is_current = tf.equal(version, self._recorded_version())
        are_keys = tf.reduce_all(ids_N >= _FIRST_KEY)
        is_done = is_current & are_keys
        if makes_rows:
            is_done &= tf.reduce_all(rows_N >= 0)
        rows_N = tf.cond(
            is_done,
            lambda: rows_N,
            lambda: self._find_slowly(ids_N, makes_rows),
        )
        rows_N.set_shape(ids_N.shape)
        are_present_N = rows_N >= 0
        if not makes_rows:
            rows_N = tf.maximum(rows_N, RowSpace.ABSENT)
        return Found(rows_N, are_present_N)

    # The rare path, under the lock.

    def _find_slowly(self, ids_N: tf.Tensor, makes_rows: bool) -> tf.Tensor:
        with self._alone([ids_N]):
            _, version = self._look_up(ids_N[:0])
            is_current = tf.equal(version, self._recorded_version())
            built = tf.cond(is_current, lambda: True, self._build)
            with tf.control_dependencies([built]):
                rows_N = self._rows_with_lowest(ids_N)
            if not makes_rows:
                return rows_N
            return tf.cond(
                tf.reduce_all(rows_N >= 0),
                lambda: rows_N,
                lambda: self._make_rows(ids_N, rows_N),
            )

    def _alone(self, given: list[tf.Tensor]) -> Any:
        """Holds the lock of the shard, if it is on a parameter server."""
        lock = getattr(self._records, "update_lock", None)
        if lock is None:
            return contextlib.nullcontext()
        return lock.holding(given)

    def _rows_with_lowest(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns rows of any ids, the lowest ones too; -1 where none is."""
        rows_N, _ = self._look_up(ids_N)
        fixed_N = self._fixed_rows(ids_N)
        seen_N = self._seen(fixed_N)
        return tf.where(
            ids_N < _FIRST_KEY, tf.where(seen_N > 0, fixed_N, -1), rows_N
        )

    def _make_rows(self, ids_N: tf.Tensor, rows_N: tf.Tensor) -> tf.Tensor:
        """Makes rows for ids that have none; returns the rows of all."""
        places_K1 = tf.where(rows_N < 0)
        new_K = tf.gather_nd(ids_N, places_K1)
        are_lowest_K = new_K < _FIRST_KEY
        taken_K = self._take_free_rows(new_K, ~are_lowest_K)
        new_rows_K = tf.where(are_lowest_K, self._fixed_rows(new_K), taken_K)
        first_KD = self._initial.of(new_K)
        written = [
            tf.raw_ops.ResourceScatterUpdate(
                resource=each.handle,
                indices=new_rows_K,
                updates=tf.cast(first_KD, each.dtype),
            )
            for each in (self._table, *self._followers)
        ]
        with tf.control_dependencies(written):
            recorded = tf.raw_ops.ResourceScatterUpdate(
                resource=self._records.handle,
                indices=new_rows_K,
                updates=tf.stack(
                    [new_K, tf.fill(tf.shape(new_K), self._now())], 1
                ),
            )
        # Others find a row only when it has its first value.
        with tf.control_dependencies([recorded]):
            are_keys_K = ~are_lowest_K
            inserted = tf.raw_ops.LookupTableInsertV2(
                table_handle=self._hash_table(),
                keys=tf.boolean_mask(new_K, are_keys_K),
                values=tf.boolean_mask(new_rows_K, are_keys_K),
            )
        with tf.control_dependencies([inserted]):
            written = self._write_version(self._recorded_version() + 1)
        with tf.control_dependencies(written):
            return tf.tensor_scatter_nd_update(rows_N, places_K1, new_rows_K)

    def _take_free_rows(
        self, ids_K: tf.Tensor, are_wanted_K: tf.Tensor
    ) -> tf.Tensor:
        """Takes a free row for each id, in the bucket of the id."""
        buckets_K = id_hashing.buckets_of(ids_K) - self._buckets.start
        wanted_M1 = tf.where(are_wanted_K)
        buckets_M = tf.gather_nd(buckets_K, wanted_M1)
        # Each takes the next one of its bucket's list, from the end.
        order_M = tf.argsort(buckets_M, stable=True)
        sorted_M = tf.gather(buckets_M, order_M)
        ranks_M = tf.range(tf.size(sorted_M)) - tf.searchsorted(
            sorted_M, sorted_M, side="left"
        )
        counts_B = self._read(self._free_counts(), [len(self._buckets)])
        places_M = tf.gather(counts_B, sorted_M) - 1 - ranks_M
        places_M = graph_checks.gated(
            places_M,
            tf.reduce_all(places_M >= 0),
            [
                f"The table {self._name!r} is full: there is no room for "
                "another id. Received: ids =",
                tf.gather_nd(ids_K, wanted_M1),
                f"rows of this shard = {len(self._rows)}. Make the table "
                "larger (capacity), admit fewer ids (admission), or have the "
                "table drop some (eviction).",
            ],
        )
        offsets_M = tf.raw_ops.ResourceGatherNd(
            resource=self._free_offsets(),
            indices=tf.stack([sorted_M, places_M], 1),
            dtype=tf.int32,
        )
        with tf.control_dependencies([offsets_M]):
            taken = tf.raw_ops.ResourceScatterSub(
                resource=self._free_counts(),
                indices=sorted_M,
                updates=tf.ones_like(sorted_M),
            )
        with tf.control_dependencies([taken]):
            rows_M = sorted_M * self._space.rows_per_bucket + offsets_M
        rows_M = tf.gather(rows_M, tf.math.invert_permutation(order_M))
        return tf.tensor_scatter_nd_update(
            tf.fill(tf.shape(ids_K), -1), wanted_M1, rows_M
        )

    def _build(self) -> tf.Tensor:
        """Builds the directory and the lists of free rows from the records."""
        space = self._space
        num_buckets = len(self._buckets)
        records_R2 = tf.raw_ops.ReadVariableOp(
            resource=self._records.handle, dtype=tf.int64
        )
        records_R2 = tf.ensure_shape(records_R2, [len(self._rows), NUM_COLUMNS])
        offsets_R = tf.tile(tf.range(space.rows_per_bucket), [num_buckets])
        are_used_R = (records_R2[:, SEEN] > 0) & (offsets_R >= space.RESERVED)
        used_M1 = tf.where(are_used_R)
        # A dense hash table imports its places, here empty ones, as columns.
        # It goes on with the imported tensors themselves, and writes to them,
        # so they must not be constants: "Empty" makes new ones at every call.
        places = [self._num_places, 1]
        zeros = tf.raw_ops.Empty(shape=places, dtype=tf.int64, init=True)
        emptied = tf.raw_ops.LookupTableImportV2(
            table_handle=self._hash_table(),
            keys=_of_unknown_shape(zeros + _EMPTY),
            values=_of_unknown_shape(
                tf.raw_ops.Empty(shape=places, dtype=tf.int32, init=True)
            ),
        )
        with tf.control_dependencies([emptied]):
            inserted = tf.raw_ops.LookupTableInsertV2(
                table_handle=self._hash_table(),
                keys=tf.gather_nd(records_R2[:, ID], used_M1),
                values=tf.cast(used_M1[:, 0], tf.int32),
            )
        # The highest free row first: rows are taken from the end.
        free_BC = tf.sort(
            tf.reshape(
                tf.where(
                    are_used_R | (offsets_R < space.RESERVED), 0, offsets_R
                ),
                [num_buckets, space.rows_per_bucket],
            ),
            direction="DESCENDING",
        )
        listed = [
            tf.raw_ops.AssignVariableOp(
                resource=self._free_offsets(), value=free_BC
            ),
            tf.raw_ops.AssignVariableOp(
                resource=self._free_counts(),
                value=tf.math.count_nonzero(free_BC, 1, dtype=tf.int32),
            ),
        ]
        with tf.control_dependencies([inserted, *listed]):
            version = tf.random.uniform(
                [], maxval=_MOST_VERSIONS, dtype=tf.int32
            )
            written = self._write_version(tf.cast(version, tf.int64))
        with tf.control_dependencies(written):
            return tf.constant(True)

    # What the directory consists of.

    def _look_up(self, ids_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of keys, -1 where there is none; and the version."""
        found = tf.raw_ops.LookupTableFindV2(
            table_handle=self._hash_table(),
            keys=tf.concat(
                [
                    tf.constant([_VERSION], tf.int64),
                    tf.maximum(ids_N, tf.constant(_FIRST_KEY, tf.int64)),
                ],
                0,
            ),
            default_value=tf.constant(-1, tf.int32),
        )
        return found[1:], tf.cast(found[0], tf.int64)

    def _hash_table(self) -> tf.Tensor:
        return tf.raw_ops.MutableDenseHashTableV2(
            empty_key=tf.constant(_EMPTY, tf.int64),
            deleted_key=tf.constant(_DELETED, tf.int64),
            value_dtype=tf.int32,
            shared_name=f"{self._unique_name}/rows_by_id",
            initial_num_buckets=self._num_places,
        )

    @property
    def _num_places(self) -> int:
        """Number of places of the hash table: it never has to grow."""
        return 1 << int(len(self._rows) / _LOAD).bit_length()

    def _free_offsets(self) -> tf.Tensor:
        """Returns the handle of the free rows of each bucket, int32."""
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int32,
            shape=[len(self._buckets), self._space.rows_per_bucket],
            shared_name=f"{self._unique_name}/free_offsets",
        )

    def _free_counts(self) -> tf.Tensor:
        """Returns the handle of their numbers, int32, shape `(B,)`."""
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int32,
            shape=[len(self._buckets)],
            shared_name=f"{self._unique_name}/free_counts",
        )

    def _read(self, handle: tf.Tensor, shape: list[int]) -> tf.Tensor:
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int32)
        return tf.ensure_shape(value, shape)

    def _recorded_version(self) -> tf.Tensor:
        return tf.raw_ops.ResourceGatherNd(
            resource=self._records.handle,
            indices=tf.constant([RowSpace.ABSENT, ID], tf.int32),
            dtype=tf.int64,
        )

    def _write_version(self, version: tf.Tensor) -> list[tf.Operation]:
        """Writes the version to the directory and the records."""
        return [
            tf.raw_ops.LookupTableInsertV2(
                table_handle=self._hash_table(),
                keys=tf.constant([_VERSION], tf.int64),
                values=tf.cast([version], tf.int32),
            ),
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._records.handle,
                indices=tf.constant([RowSpace.ABSENT], tf.int32),
                updates=tf.stack([[version, tf.constant(0, tf.int64)]]),
            ),
        ]

    def _seen(self, rows_N: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.ResourceGatherNd(
            resource=self._records.handle,
            indices=tf.stack([rows_N, tf.fill(tf.shape(rows_N), SEEN)], 1),
            dtype=tf.int64,
        )

    def _fixed_rows(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns the row of each of the lowest ids; any row for others."""
        buckets_N = id_hashing.buckets_of(ids_N) - self._buckets.start
        offsets_N = tf.minimum(ids_N - _LOWEST, RowSpace.NUM_LOWEST - 1)
        offsets_N = tf.cast(tf.maximum(offsets_N, 0), tf.int32)
        return (
            buckets_N * self._space.rows_per_bucket
            + RowSpace.LOWEST
            + offsets_N
        )

    def _now(self) -> tf.Tensor:
        return tf.cast(tf.timestamp(), tf.int64)


def _of_unknown_shape(tensor: tf.Tensor) -> tf.Tensor:
    """Hides a shape: graphs demand vectors, but the operation, columns."""
    return tf.raw_ops.PlaceholderWithDefault(
        input=tensor, shape=tf.TensorShape(None)
    )
