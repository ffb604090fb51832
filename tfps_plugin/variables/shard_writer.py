"""Assigns the shards of one table from one value."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.variables import row_gather
from tfps_plugin.variables import shard_reader
from tfps_plugin.variables.row_lookup import Table

_SCATTER = {
    "assign": "scatter_update",
    "assign_add": "scatter_add",
    "assign_sub": "scatter_sub",
}


def assign(table: Table, method: str, value: Any) -> None:
    """Assigns, adds or subtracts a value of the table's shape.

    Args:
        table: What is assigned.
        method: `"assign"`, `"assign_add"` or `"assign_sub"`.
        value: Another table, an array, or what can be made a tensor.

    Raises:
        ValueError: If the value has another shape.
    """
    if isinstance(value, Table) and _cut_alike(table, value):
        # The same rows on both sides: nothing passes through the caller.
        for shard, other in zip(table.shards, value.shards, strict=True):
            with tf.device(shard.device):
                getattr(shard, method)(other.read_value())
        return
    if isinstance(value, np.ndarray) and tf.executing_eagerly():
        _require_shape(table, value.shape)
        assign_blocks(table, method, lambda start, stop: value[start:stop])
        return
    value = tf.convert_to_tensor(value, table.dtype)
    _require_shape(table, value.shape)
    for index, shard in enumerate(table.shards):
        rows = table.layout.rows(index)
        getattr(shard, method)(value[rows.start : rows.stop])


def scatter(table: Table, method: str, rows: tf.IndexedSlices) -> None:
    """Assigns, adds or subtracts single rows.

    Args:
        table: What is assigned.
        method: `"scatter_update"`, `"scatter_add"` or `"scatter_sub"`.
        rows: The rows, by their numbers in the table.
    """
    values = tf.convert_to_tensor(rows.values, table.dtype)
    local_ids, (parts,) = row_gather.split_by_shard(
        table.layout, tf.convert_to_tensor(rows.indices), values
    )
    for shard, ids, part in zip(table.shards, local_ids, parts, strict=True):
        getattr(shard, method)(tf.IndexedSlices(part, ids))


def _cut_alike(table: Table, other: Table) -> bool:
    return table.shape == other.shape and table.layout == other.layout


def assign_blocks(
    table: Table, method: str, read: Callable[[int, int], Any]
) -> None:
    """Assigns, adds or subtracts a value that comes block by block.

    Only on the chief, outside of functions.

    Args:
        table: What is assigned.
        method: `"assign"`, `"assign_add"` or `"assign_sub"`.
        read: The value of the rows from one up to another, as an array or
            what can be made a tensor of the table's dtype.
    """
    for index, rows in shard_reader.blocks(table):
        shard = table.shards[index]
        first = table.layout.offsets[index] + rows.start
        block = tf.convert_to_tensor(
            read(first, first + len(rows)), table.dtype
        )
        if len(rows) == len(table.layout.rows(index)):
            getattr(shard, method)(block)
        else:
            ids = tf.range(rows.start, rows.stop)
            getattr(shard, _SCATTER[method])(tf.IndexedSlices(block, ids))


def _require_shape(table: Table, shape: Any) -> None:
    if not table.shape.is_compatible_with(tf.TensorShape(shape)):
        raise ValueError(
            f"The sharded variable {table.path!r} can only be assigned values "
            f"of its own shape {tuple(table.shape)}. Received: "
            f"shape={tuple(shape)}"
        )
