"""Contents of a dynamic table, as the program reads and writes them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.dynamic import id_hashing
from tfps_plugin.variables.dynamic.dynamic_table import DynamicTable
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard.hash_index import FIRST_KEY
from tfps_plugin.variables.dynamic.shard.shard_parts import ID
from tfps_plugin.variables.dynamic.shard.shard_parts import IS_USED
from tfps_plugin.variables.lookup.table import table_behind

# Rows are read and written in blocks of about this size.
_BLOCK_BYTES = 16 << 20


def size(records: Any) -> int:
    """Returns the number of rows that belong to ids.

    Args:
        records: The `keras.Variable` of the records.
    """
    if table_behind(records) is not None:
        steps_in_flight.finish()
    return sum(map(_count, _parts(records)))


def _count(part: Any) -> int:
    def read_once() -> int:
        with tf.device(part.device):
            value = tf.raw_ops.ReadVariableOp(
                resource=part.handle, dtype=tf.int64
            )
            return int(tf.math.count_nonzero(value[:, IS_USED]))

    return chief_reads.read(read_once)


def blocks(rows: Any, records: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields ids and their rows, a part of the table at a time.

    Args:
        rows: The `keras.Variable` of the rows.
        records: That of the records.

    Yields:
        Ids, int64, shape `(N,)`, and their rows, shape `(N, D)`.
    """
    for part, records_part in zip(_parts(rows), _parts(records), strict=True):
        row_bytes = part.shape[1] * part.dtype.size
        step = max(1, _BLOCK_BYTES // row_bytes)
        for start in range(0, part.shape[0], step):
            block = range(start, min(start + step, part.shape[0]))
            recorded = _fetch(records_part, block)
            are_used = recorded[:, IS_USED] > 0
            if are_used.any():
                yield recorded[are_used, ID], _fetch(part, block)[are_used]


def count_without_room(table: DynamicTable, records: Any, ids: Any) -> int:
    """Returns the number of ids that `assign` would find no room for.

    Args:
        table: The table.
        records: The `keras.Variable` of its records.
        ids: Distinct int64, shape `(N,)`.
    """
    if table_behind(records) is not None:
        steps_in_flight.finish()
    free = np.concatenate(
        [_count_free(part, table.space) for part in _parts(records)]
    )
    needed = np.zeros_like(free)
    step = _BLOCK_BYTES // ids.itemsize
    for start in range(0, len(ids), step):
        block = tf.constant(ids[start : start + step], tf.int64)
        # The lowest ids have rows of their own.
        are_new = ~table.are_present(block) & (block >= FIRST_KEY)
        buckets = id_hashing.buckets_of(tf.boolean_mask(block, are_new))
        needed += np.bincount(buckets, minlength=len(needed))
    return int(np.maximum(needed - free, 0).sum())


def _count_free(part: Any, space: RowSpace) -> np.ndarray:
    """Returns the number of free rows of each bucket of a shard."""

    def read_once() -> np.ndarray:
        with tf.device(part.device):
            value = tf.raw_ops.ReadVariableOp(
                resource=part.handle, dtype=tf.int64
            )
            used_BC = tf.reshape(
                value[:, IS_USED], [-1, space.rows_per_bucket]
            )[:, space.RESERVED :]
            free_B = tf.math.count_nonzero(used_BC == 0, 1)
            counts: np.ndarray = free_B.numpy()
            return counts

    return chief_reads.read(read_once)


def assign(table: DynamicTable, rows: Any, ids: Any, values: Any) -> None:
    """Gives ids their rows, and makes those that there are not.

    Args:
        table: The table.
        rows: The `keras.Variable` of its rows.
        ids: Distinct int64, shape `(N,)`.
        values: Their rows, shape `(N, D)`.

    Raises:
        tf.errors.InvalidArgumentError: If there is no room for some. Those of
            blocks before have been assigned; see `count_without_room`.
    """
    step = max(1, _BLOCK_BYTES // max(1, values[:1].nbytes))
    for start in range(0, len(ids), step):
        block = slice(start, start + step)
        numbers = table.rows_for_all(tf.constant(ids[block], tf.int64))
        rows.value.scatter_update(
            tf.IndexedSlices(tf.cast(values[block], rows.dtype), numbers)
        )


def _parts(variable: Any) -> list[Any]:
    """Returns the shards of a variable, or that of this process."""
    found = table_behind(variable)
    return [variable.value] if found is None else list(found[0].shards)


def _fetch(part: Any, rows: range) -> np.ndarray:
    if hasattr(part, "fetch_rows"):
        fetched: np.ndarray = part.fetch_rows(rows)
        return fetched
    return np.asarray(part[rows.start : rows.stop])
