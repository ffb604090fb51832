"""Reads the shards of one table as one value."""

import itertools
import math
import operator
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.lookup import distinct_rows
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup import present_rows
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.saving import row_blocks

# Whole tables pass through the chief in blocks of about this size.
BLOCK_BYTES = 16 << 20


def read_whole(table: Table) -> tf.Tensor:
    """Returns the whole table as one tensor, with a dense gradient."""
    wire_dtype = wire.dtype_of_reads(table)

    @tf.custom_gradient
    def read(token: tf.Tensor) -> Any:
        parts = []
        for shard in table.shards:
            with tf.device(shard.device):
                part = present_rows.read(shard)
                parts.append(wire.narrowed(part, wire_dtype))
        whole = wire.widened(tf.concat(parts, 0), table.dtype, table.shape[-1])
        return whole, lambda upstream: upstream

    value = read(table.tape_input)
    value.set_shape(table.shape)
    return value


def read_rows(table: Table, start: int, stop: int) -> tf.Tensor:
    """Reads consecutive rows from the ps that hold them.

    Args:
        table: The table.
        start: First row.
        stop: The row after the last; no rows unless it is above `start`.

    Returns:
        The rows; their gradient is a `DistinctRows`.
    """
    shape = table.shape
    wire_dtype = wire.dtype_of_reads(table)

    @tf.custom_gradient
    def read(token: tf.Tensor) -> Any:
        nothing = wire.narrowed(
            tf.zeros([0, *shape.as_list()[1:]], table.dtype), wire_dtype
        )
        parts = []
        for shard, rows in table.layout.overlaps(start, stop):
            variable = table.shards[shard]
            with tf.device(variable.device):
                whole = present_rows.read(variable)
                mine = whole[rows.start : rows.stop]
                parts.append(wire.narrowed(mine, wire_dtype))

        def gradient(upstream: tf.Tensor) -> DistinctRows:
            with tf.device(graph_checks.CPU):
                ids = tf.range(start, max(start, stop), dtype=tf.int64)
            return DistinctRows(upstream, ids, distinct_rows.dense_shape(shape))

        found = wire.widened(
            tf.concat(parts or [nothing], 0), table.dtype, shape[-1]
        )
        return found, gradient

    return read(table.tape_input)


def to_array(table: Table) -> np.ndarray:
    """Returns the whole table as an array, fetched block by block."""
    array = np.empty(table.shape.as_list(), table.dtype.as_numpy_dtype)
    for first, block in fetch_blocks(table):
        array[first : first + len(block)] = block
    return array


def fetch_blocks(
    table: Table, wanted: range | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """Fetches rows of a table, block by block, in their order.

    Args:
        table: The table.
        wanted: Consecutive rows; None for all.

    Yields:
        The number of a block's first row, and the block as an array in this
        process.
    """
    for shard, rows in blocks(table, wanted):
        first = table.layout.offsets[shard] + rows.start
        yield first, table.shards[shard].fetch_rows(rows)


def fetch_pieces(table: Table, pieces: Sequence[range]) -> Iterator[np.ndarray]:
    """Fetches ranges of rows, several of them in one message.

    Args:
        table: The table.
        pieces: Ranges of rows.

    Yields:
        The rows, one block behind the other.
    """
    if len(pieces) == 1:
        for _, fetched in fetch_blocks(table, pieces[0]):
            yield fetched
        return
    by_shard = itertools.groupby(
        (
            overlap
            for rows in pieces
            for overlap in table.layout.overlaps(rows.start, rows.stop)
        ),
        operator.itemgetter(0),
    )
    for shard, overlaps in by_shard:
        of_shard = (rows for _, rows in overlaps)
        for block in row_blocks.cut(of_shard, _rows_of_a_block(table)):
            yield table.shards[shard].fetch_rows(row_blocks.numbers(block))


def _rows_of_a_block(table: Table) -> int:
    row_bytes = math.prod(table.shape.as_list()[1:]) * table.dtype.size
    return max(1, BLOCK_BYTES // max(1, row_bytes))


def blocks(
    table: Table, wanted: range | None = None
) -> Iterator[tuple[int, range]]:
    """Cuts rows of a table into blocks of one message each.

    Args:
        table: The table.
        wanted: Consecutive rows; None for all.

    Yields:
        The number of a shard, and some of its rows, counted from its own
        first row. Up to two blocks go in one piece, so that the rows of most
        variables are read without a lookup.
    """
    if wanted is None:
        wanted = range(table.layout.num_rows)
    limit = _rows_of_a_block(table)
    for shard, rows in table.layout.overlaps(wanted.start, wanted.stop):
        step = len(rows) if len(rows) <= 2 * limit else limit
        for start in range(rows.start, rows.stop, step):
            yield shard, range(start, min(start + step, rows.stop))


def is_large(table: Table) -> bool:
    """Returns whether a table is too large to be anywhere but on its ps."""
    num_bytes = math.prod(table.shape.as_list()) * table.dtype.size
    return num_bytes > BLOCK_BYTES
