"""Hash tables from keys to rows, on the device of the code that uses them.

They are TensorFlow's dense hash tables, with as many places from the start as
the rows of a shard need: they never grow. A removed key keeps its place until
another one is inserted there, so an index has to be filled anew when its places
run out.

An insertion takes the first removed place that it meets, even if the table has
the key in a later one: it would then have two. So nobody inserts a key that is
there, but for the version, which is never removed: its first place is found.

TensorFlow takes an id itself as its hash. Ids that differ in their highest bits
only, such as those of several tables made unique by a number in front, would
all have one place. So the hash tables have `id_hashing.spread` of the ids.

Shape legend: N keys, T tables.
"""

import functools
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.ids import keys
from tfps_plugin.variables.dynamic.row_space import RowSpace

# Keys that are no ids: the lowest numbers of int64. Ids of these values have
# rows of their own.
_EMPTY = tf.int64.min
_REMOVED = _EMPTY + 1
_VERSION = _EMPTY + 2
FIRST_KEY = _EMPTY + RowSpace.NUM_LOWEST

# A hash table this full is still fast. TensorFlow's own limit is 0.8.
_LOAD = 0.75


class HashIndex:
    """Rows by key, and the versions of the records that they were read from.

    Each of the tables that are stacked has a hash table and a version. Each
    lookup makes few operations for each of them: there may be hundreds.

    All methods make operations on the current device.
    """

    def __init__(self, unique_name: str, nums_rows: Sequence[int]) -> None:
        """Describes the hash tables; the first operation on each makes it.

        Args:
            unique_name: A name that nothing else on the task has.
            nums_rows: Number of rows of each table.
        """
        self._unique_name = unique_name
        self._nums_places = [
            1 << int(num / _LOAD).bit_length() for num in nums_rows
        ]

    @property
    def most_keys(self) -> list[int]:
        """Number of keys that each has place for, also removed ones."""
        return [int(num * _LOAD) for num in self._nums_places]

    def look_up(self, keys_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Looks up keys.

        Args:
            keys_N: Any keys.

        Returns:
            Their rows, int32, -1 where there is none; those of the lowest ids
            mean nothing. And the version of each table, int64, shape `(T,)`,
            -1 where there is none: while a table is filled, it has no version.
        """
        size = len(self._nums_places)
        asked = tf.concat(
            [
                tf.constant([_VERSION] * size, tf.int64),
                _spread(
                    tf.maximum(
                        keys.ids_of(keys_N), tf.constant(FIRST_KEY, tf.int64)
                    )
                ),
            ],
            0,
        )
        tables_N = keys.tables_of(keys_N)
        if tables_N is None:
            (found,) = self._found([asked])
        else:
            tables = tf.concat([tf.range(size), tables_N], 0)
            found = tf.dynamic_stitch(
                tf.dynamic_partition(tf.range(tf.size(tables)), tables, size),
                self._found(tf.dynamic_partition(asked, tables, size)),
            )
        return found[size:], tf.cast(found[:size], tf.int64)

    def _found(self, asked: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns what each hash table has, -1 where it has nothing."""
        none = tf.constant(-1, tf.int32)
        return [
            tf.raw_ops.LookupTableFindV2(
                table_handle=handle, keys=of_table, default_value=none
            )
            for handle, of_table in zip(self.handles(), asked, strict=True)
        ]

    def insert(
        self, keys_N: tf.Tensor, rows_N: tf.Tensor
    ) -> list[tf.Operation]:
        """Inserts keys, which have no lowest ids, and their rows, int32.

        Args:
            keys_N: Keys that are not there.
            rows_N: Their rows.
        """
        return [
            tf.raw_ops.LookupTableInsertV2(
                table_handle=handle, keys=ids_M, values=rows_M
            )
            for handle, (ids_M, rows_M) in zip(
                self.handles(),
                self._pairs_by_table(keys_N, rows_N),
                strict=True,
            )
        ]

    def remove(self, keys_N: tf.Tensor) -> list[tf.Operation]:
        """Removes keys."""
        removed = self._by_table(
            _spread(keys.ids_of(keys_N)), keys.tables_of(keys_N)
        )
        return [
            tf.raw_ops.LookupTableRemoveV2(table_handle=handle, keys=ids_M)
            for handle, ids_M in zip(self.handles(), removed, strict=True)
        ]

    def write_versions(self, versions_T: tf.Tensor) -> list[tf.Operation]:
        """Writes the version of each table, int64 below 2**31."""
        key = tf.constant([_VERSION], tf.int64)
        versions = tf.split(
            tf.cast(versions_T, tf.int32), len(self._nums_places)
        )
        return [
            tf.raw_ops.LookupTableInsertV2(
                table_handle=handle, keys=key, values=version
            )
            for handle, version in zip(self.handles(), versions, strict=True)
        ]

    def forget_versions(self) -> None:
        """Makes all tables look as if they were of other records."""
        none = tf.fill([len(self._nums_places)], tf.constant(-1, tf.int64))
        self.write_versions(none)

    def fill(self, keys_N: tf.Tensor, rows_N: tf.Tensor) -> list[tf.Operation]:
        """Replaces everything by some keys and their rows."""
        return [
            self._fill_one(table, ids_M, rows_M)
            for table, (ids_M, rows_M) in enumerate(
                self._pairs_by_table(keys_N, rows_N)
            )
        ]

    def refill(
        self, are_due_T: tf.Tensor, keys_N: tf.Tensor, rows_N: tf.Tensor
    ) -> list[tf.Tensor]:
        """Replaces what some of the tables have, also their versions.

        Args:
            are_due_T: Whether each is one of them.
            keys_N: All keys that these are to have, and no others.
            rows_N: Their rows.
        """

        def filled(table: int, ids_M: tf.Tensor, rows_M: tf.Tensor) -> Any:
            with tf.control_dependencies(
                [self._fill_one(table, ids_M, rows_M)]
            ):
                return tf.constant(True)

        return [
            tf.cond(
                are_due_T[table],
                functools.partial(filled, table, ids_M, rows_M),
                lambda: False,
            )
            for table, (ids_M, rows_M) in enumerate(
                self._pairs_by_table(keys_N, rows_N)
            )
        ]

    def _fill_one(
        self, table: int, ids_M: tf.Tensor, rows_M: tf.Tensor
    ) -> tf.Operation:
        # A dense hash table imports its places, here empty ones, as columns.
        # It goes on with the imported tensors themselves, and writes to them,
        # so they must not be constants: "Empty" makes new ones at every call.
        shape = tf.constant([self._nums_places[table], 1])
        ids, rows = (
            tf.raw_ops.Empty(shape=shape, dtype=dtype, init=True)
            for dtype in (tf.int64, tf.int32)
        )
        handle = self._handle(table, *_empty_and_removed())
        emptied = tf.raw_ops.LookupTableImportV2(
            table_handle=handle,
            keys=_of_unknown_shape(ids + _EMPTY),
            values=_of_unknown_shape(rows),
        )
        with tf.control_dependencies([emptied]):
            return tf.raw_ops.LookupTableInsertV2(
                table_handle=handle, keys=ids_M, values=rows_M
            )

    def free(self) -> None:
        """Frees the memory of the index, which nothing may use any more."""
        for handle in self.handles():
            tf.raw_ops.DestroyResourceOp(resource=handle)

    def handles(self) -> list[tf.Tensor]:
        """Returns the handle of each hash table."""
        empty, removed = _empty_and_removed()
        return [
            self._handle(table, empty, removed)
            for table in range(len(self._nums_places))
        ]

    def _handle(
        self, table: int, empty: tf.Tensor, removed: tf.Tensor
    ) -> tf.Tensor:
        return tf.raw_ops.MutableDenseHashTableV2(
            empty_key=empty,
            deleted_key=removed,
            value_dtype=tf.int32,
            shared_name=f"{self._unique_name}/rows_by_id/{table}",
            initial_num_buckets=self._nums_places[table],
        )

    def _pairs_by_table(
        self, keys_N: tf.Tensor, rows_N: tf.Tensor
    ) -> Iterable[tuple[tf.Tensor, tf.Tensor]]:
        """Returns the spread ids and the rows of each table."""
        ids_N = _spread(keys.ids_of(keys_N))
        tables_N = keys.tables_of(keys_N)
        return zip(
            self._by_table(ids_N, tables_N),
            self._by_table(rows_N, tables_N),
            strict=True,
        )

    def _by_table(
        self, values_N: tf.Tensor, tables_N: tf.Tensor | None
    ) -> Sequence[tf.Tensor]:
        """Returns the values of each table, in their order."""
        if tables_N is None:
            return [values_N]
        parts: list[tf.Tensor] = tf.dynamic_partition(
            values_N, tables_N, len(self._nums_places)
        )
        return parts


def _spread(ids_N: tf.Tensor) -> tf.Tensor:
    """Returns distinct numbers of ids, none of them one of the lowest."""
    spread_N = id_hashing.spread(ids_N)
    # The lowest ids are not there, so nothing else is what they are spread to.
    return tf.where(spread_N < FIRST_KEY, id_hashing.spread(spread_N), spread_N)


def _empty_and_removed() -> tuple[tf.Tensor, tf.Tensor]:
    return tf.constant(_EMPTY, tf.int64), tf.constant(_REMOVED, tf.int64)


def _of_unknown_shape(tensor: tf.Tensor) -> tf.Tensor:
    """Hides a shape: graphs demand vectors, but the operation, columns."""
    return tf.raw_ops.PlaceholderWithDefault(
        input=tensor, shape=tf.TensorShape(None)
    )
