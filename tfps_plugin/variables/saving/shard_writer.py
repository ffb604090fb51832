"""Assigns the shards of one table from one value.

Shape legend: N rows or places that are changed, K coordinates of a place.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup import shard_order
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.methods import self_assignment
from tfps_plugin.variables.saving import shard_reader
from tfps_plugin.variables.storage import on_disk

_SCATTER = {
    "assign": "scatter_update",
    "assign_add": "scatter_add",
    "assign_sub": "scatter_sub",
}


def assign(
    table: Table, method: str, value: Any, name: str | None = None
) -> list[Any]:
    """Assigns, adds or subtracts a value of the table's shape.

    Args:
        table: The table to assign.
        method: `"assign"`, `"assign_add"` or `"assign_sub"`.
        value: Another table, an array, or a value that converts to a tensor.
        name: Name of the operations.

    Returns:
        In a function, the operations that do it.

    Raises:
        ValueError: If the value has another shape.
        errors.UnsupportedError: If the table is on disk, and more than
            assigned, or assigned in a function.
    """
    if table.is_on_disk and (method != "assign" or not tf.executing_eagerly()):
        # Before one of several shards is changed.
        raise on_disk.no_whole_assignment(table.path, method)
    if isinstance(value, Table) and table.is_on_disk:
        # Whole shards of it would be in the memory of parameter servers.
        _require_shape(table, value.shape)
        assign_blocks(
            table,
            method,
            lambda start, stop: np.concatenate(
                [
                    block
                    for _, block in shard_reader.fetch_blocks(
                        value, range(start, stop)
                    )
                ]
            ),
        )
        return []
    if isinstance(value, Table) and _cut_alike(table, value):
        # Both tables have the same layout: nothing passes through the caller.
        done = []
        for shard, other in zip(table.shards, value.shards, strict=True):
            with tf.device(shard.device):
                part = other.read_value()
                done.append(
                    getattr(shard, method)(part, name=name, read_value=False)
                )
        return done
    if isinstance(value, np.ndarray) and tf.executing_eagerly():
        _require_shape(table, value.shape)
        assign_blocks(table, method, lambda start, stop: value[start:stop])
        return []
    value = tf.convert_to_tensor(value, table.dtype)
    _require_shape(table, value.shape)
    computed = None
    if all(shard.unseen_steps is None for shard in table.shards):
        computed = self_assignment.parts_of_shards(table, method, value)
    if computed is not None:
        method, parts = computed
    else:
        parts = [
            value[rows.start : rows.stop]
            for rows in map(table.layout.rows, range(table.layout.num_shards))
        ]
    return [
        getattr(shard, method)(part, name=name, read_value=False)
        for shard, part in zip(table.shards, parts, strict=True)
    ]


def scatter(
    table: Table, method: str, rows: tf.IndexedSlices, name: str | None = None
) -> None:
    """Changes single rows of a sharded table.

    Args:
        table: The table to change.
        method: Name of the method of `tf.Variable`.
        rows: Values, by the numbers of their rows in the table: a row for each
            number, or one scalar for all.
        name: Name of the operations.

    Raises:
        InvalidArgumentError: TensorFlow's, if some of the rows are not in the
            table; nothing is changed then.
    """
    ids = tf.convert_to_tensor(rows.indices)
    values = tf.convert_to_tensor(rows.values, table.dtype)
    row_shape = table.shape[1:]
    if values.shape.rank == 0:
        values = tf.broadcast_to(
            values, tf.concat([tf.shape(ids), row_shape.as_list()], 0)
        )
    if ids.shape.rank != 1:
        values = tf.reshape(values, [-1, *row_shape.as_list()])
        ids = tf.reshape(ids, [-1])
    ids_N = _inside(table, ids)
    local_ids, (parts,) = shard_order.split_by_shard(
        table.layout, ids_N, values
    )
    with _named(name):
        for shard, of_shard, part in zip(
            table.shards, local_ids, parts, strict=True
        ):
            getattr(shard, method)(tf.IndexedSlices(part, of_shard))


def scatter_nd(
    table: Table,
    method: str,
    indices: Any,
    updates: Any,
    name: str | None = None,
) -> None:
    """Changes single elements or slices of a sharded table.

    Args:
        table: The table to change.
        method: Name of the method of `tf.Variable`.
        indices: Coordinates, shape `(..., K)`; the first is the row.
        updates: A value for each of them.
        name: Name of the operations.

    Raises:
        InvalidArgumentError: TensorFlow's, if some of the places are not in
            the table; if some of the rows are not, nothing is changed.
    """
    indices = tf.convert_to_tensor(indices)
    updates = tf.convert_to_tensor(updates, table.dtype)
    depth = indices.shape[-1]
    slice_shape = table.shape.as_list()[depth:]
    indices_NK = tf.reshape(indices, [-1, depth])
    updates = tf.reshape(updates, [-1, *slice_shape])
    ids_N = _inside(table, indices_NK[:, 0])
    local_ids, (rest, parts) = shard_order.split_by_shard(
        table.layout, ids_N, indices_NK[:, 1:], updates
    )
    with _named(name):
        for shard, rows, columns, part in zip(
            table.shards, local_ids, rest, parts, strict=True
        ):
            places = tf.concat([rows[:, tf.newaxis], columns], -1)
            getattr(shard, method)(places, part)


def _inside(table: Table, ids_N: tf.Tensor) -> tf.Tensor:
    """Returns row numbers that raise an error unless the table has them all."""
    return graph_checks.require_inside(ids_N, table.layout.num_rows, table.path)


def _named(name: str | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if name is None else tf.name_scope(name)


def _cut_alike(table: Table, other: Table) -> bool:
    return table.shape == other.shape and table.layout == other.layout


def assign_blocks(
    table: Table, method: str, read: Callable[[int, int], Any]
) -> None:
    """Assigns, adds or subtracts a value that comes block by block.

    Only on the chief, outside of functions.

    Args:
        table: The table to assign.
        method: `"assign"`, `"assign_add"` or `"assign_sub"`.
        read: Returns the value of the rows from one up to another, as an array
            or a value that converts to a tensor of the table's dtype.
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
