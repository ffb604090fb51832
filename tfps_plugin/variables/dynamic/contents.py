"""Contents of a dynamic table, as the program reads and writes them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.dynamic.dynamic_table import DynamicTable
from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard.hash_index import FIRST_KEY
from tfps_plugin.variables.dynamic.shard.shard_parts import ID
from tfps_plugin.variables.dynamic.shard.shard_parts import IS_USED
from tfps_plugin.variables.lookup.table import table_behind
from tfps_plugin.variables.saving import row_blocks

# Rows are read and written in blocks of about this size.
_BLOCK_BYTES = 16 << 20


def size(records: Any, space: RowSpace, table: int) -> int:
    """Returns the number of rows that belong to ids.

    Args:
        records: The `keras.Variable` of the records.
        space: Rows of all buckets.
        table: Number of the table.
    """
    if table_behind(records) is not None:
        steps_in_flight.finish()
    return sum(
        int(_counts(part, space, table, of_used=True).sum())
        for part in _parts(records)
    )


def blocks(
    rows: Any, records: Any, space: RowSpace, table: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields ids and their rows, a part of the table at a time.

    Ids that get rows, or lose them, while they are read may be left out.

    Args:
        rows: The `keras.Variable` of the rows.
        records: That of the records.
        space: Rows of all buckets.
        table: Number of the table.

    Yields:
        Ids, int64, shape `(N,)`, and their rows, shape `(N, D)`.
    """
    for part, records_part in zip(_parts(rows), _parts(records), strict=True):
        row_bytes = part.shape[1] * part.dtype.size
        step = max(1, _BLOCK_BYTES // row_bytes)
        cells = space.cells_of(table, range(part.shape[0]))
        for pieces in row_blocks.cut(cells, step):
            numbers = row_blocks.numbers(pieces)
            recorded = _fetch(records_part, numbers)
            are_used = recorded[:, IS_USED] > 0
            if are_used.any():
                values = _fetch(part, numbers)
                # A scheduled step may just have given rows to other ids.
                again = _fetch(records_part, numbers)
                are_used &= (recorded == again).all(axis=1)
                yield recorded[are_used, ID], values[are_used]


def count_without_room(
    stack: DynamicTable, table: int, records: Any, ids: Any
) -> int:
    """Returns the number of ids that `assign` would find no room for.

    Args:
        stack: The table, or the stack that it belongs to.
        table: Its number there.
        records: The `keras.Variable` of the records.
        ids: Distinct int64, shape `(N,)`.
    """
    if table_behind(records) is not None:
        steps_in_flight.finish()
    free = np.concatenate(
        [
            _counts(part, stack.space, table, of_used=False)
            for part in _parts(records)
        ]
    )
    needed = np.zeros_like(free)
    step = _BLOCK_BYTES // ids.itemsize
    for start in range(0, len(ids), step):
        block = tf.constant(ids[start : start + step], tf.int64)
        # The lowest ids have rows of their own.
        are_new = ~stack.are_present(block, table) & (block >= FIRST_KEY)
        buckets = id_hashing.buckets_of(tf.boolean_mask(block, are_new))
        needed += np.bincount(buckets, minlength=len(needed))
    return int(np.maximum(needed - free, 0).sum())


def _counts(
    part: Any, space: RowSpace, table: int, *, of_used: bool
) -> np.ndarray:
    """Returns the number of used, or of free, rows of each bucket."""
    # The lowest ids have reserved rows, which are never free.
    skipped = 0 if of_used else space.RESERVED
    first = space.offsets[table]
    its = slice(first + skipped, first + space.rows_per_cell[table])

    def read_once() -> np.ndarray:
        with tf.device(part.device):
            value = tf.raw_ops.ReadVariableOp(
                resource=part.handle, dtype=tf.int64
            )
            used_BC = tf.reshape(
                value[:, IS_USED], [-1, space.rows_per_bucket]
            )[:, its]
            are_counted_BC = (used_BC > 0) == of_used
            counts: np.ndarray = tf.math.count_nonzero(
                are_counted_BC, 1
            ).numpy()
            return counts

    return chief_reads.read(read_once)


def assign(
    stack: DynamicTable, table: int, rows: Any, ids: Any, values: Any
) -> None:
    """Gives ids their rows, and makes those that there are not.

    Args:
        stack: The table, or the stack that it belongs to.
        table: Its number there.
        rows: The `keras.Variable` of the rows.
        ids: Distinct int64, shape `(N,)`.
        values: Their rows, shape `(N, D)`.

    Raises:
        tf.errors.InvalidArgumentError: If there is no room for some. Those of
            blocks before have been assigned; see `count_without_room`.
    """
    step = max(1, _BLOCK_BYTES // max(1, values[:1].nbytes))
    for start in range(0, len(ids), step):
        block = slice(start, start + step)
        numbers = stack.rows_for_all(tf.constant(ids[block], tf.int64), table)
        rows.value.scatter_update(
            tf.IndexedSlices(tf.cast(values[block], rows.dtype), numbers)
        )


def _parts(variable: Any) -> list[Any]:
    """Returns the shards of a variable, or that of this process."""
    found = table_behind(variable)
    return [variable.value] if found is None else list(found[0].shards)


def _fetch(part: Any, rows: range | np.ndarray) -> np.ndarray:
    if hasattr(part, "fetch_rows"):
        fetched: np.ndarray = part.fetch_rows(rows)
        return fetched
    if isinstance(rows, np.ndarray):
        return np.asarray(tf.gather(part, rows))
    return np.asarray(part[rows.start : rows.stop])
