"""Slices of a sharded table, read from and written to the ps that hold them.

Shape legend: N rows of a slice, D elements of a row.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.saving import shard_reader


def read(table: Table, key: Any) -> tf.Tensor | None:
    """Returns the slice of a table, if only some of its rows are needed.

    Returns:
        The slice; None if all rows have to be read for it.

    Raises:
        InvalidArgumentError: TensorFlow's, if an integer is not a row of the
            table; ValueError while a function is traced.
    """
    first, rest = _split(key)
    num_rows = table.layout.num_rows
    if isinstance(first, slice):
        rows = static_rows(first, num_rows)
        if rows is None or rows.step != 1:
            return None
        part = shard_reader.read_rows(table, rows.start, rows.stop)
        return part[(slice(None), *rest)]
    if _is_integer(first):
        row = _row_number(first, num_rows)
        return shard_reader.read_rows(table, row, row + 1)[(0, *rest)]
    if tf.is_tensor(first) and first.shape.rank == 0 and first.dtype.is_integer:
        rows_1D = row_lookup.look_up(table, first[tf.newaxis], from_end=True)
        return rows_1D[(0, *rest)]
    return None


def assigner(table: Any, key: Any, part: tf.Tensor) -> Callable[..., Any]:
    """Returns a function that assigns a slice, TensorFlow's `slice.assign`.

    Returns:
        A function of a value and the name of the operation.
    """
    return functools.partial(_assign, table, key, part.shape)


def _assign(
    table: Any,
    key: Any,
    shape: tf.TensorShape,
    value: Any,
    name: str | None = None,
) -> Any:
    first, rest = _split(key)
    num_rows = table.layout.num_rows
    value = tf.convert_to_tensor(value, table.dtype)
    if first is Ellipsis:
        # Does it stand for the first axis, or for no axis?
        if len([k for k in rest if k is not None]) < table.shape.rank:
            first, rest = slice(None), (Ellipsis, *rest)
        else:
            first, rest = rest[0], rest[1:]
    rows = static_rows(first, num_rows)
    if rows is None or any(tf.is_tensor(each) for each in rest):
        raise errors.UnsupportedError(
            f"A slice of the sharded variable {table.name!r} cannot be "
            "assigned unless its place is known when the program is written; "
            "expected integers, and an integer or a slice on the first axis. "
            f"Received: key={key!r}. Use scatter_update or scatter_nd_update."
        )
    value = tf.broadcast_to(value, shape)
    if len(rows) == 0:
        return table
    if rows == range(num_rows) and not rest:
        return table.assign(value, name=name)
    row_shape = table.shape.as_list()[1:]
    places_D = np.arange(math.prod(row_shape)).reshape(row_shape)
    if rest:
        places_D = places_D[rest]
    ids_N = np.asarray(rows, np.int64)
    if places_D.size == math.prod(row_shape):
        # Slices that begin at the end leave all elements in another order.
        in_order = np.argsort(places_D.ravel(), kind="stable")
        values = tf.gather(
            tf.reshape(value, [len(ids_N), -1]), in_order, axis=1
        )
        values = tf.reshape(values, [len(ids_N), *row_shape])
        return table.scatter_update(tf.IndexedSlices(values, ids_N), name=name)
    columns = np.stack(np.unravel_index(places_D.ravel(), row_shape), -1)
    places = np.concatenate(
        [
            np.repeat(ids_N, len(columns))[:, np.newaxis],
            np.tile(columns, (len(ids_N), 1)),
        ],
        axis=1,
    )
    return table.scatter_nd_update(places, tf.reshape(value, [-1]), name)


def static_rows(key: Any, num_rows: int) -> range | None:
    """Returns the rows that the first part of a key selects, if known."""
    if _is_integer(key):
        row = _row_number(key, num_rows)
        return range(row, row + 1)
    if not isinstance(key, slice):
        return None
    bounds = (key.start, key.stop, key.step)
    if not all(b is None or _is_integer(b) for b in bounds):
        return None
    return range(*key.indices(num_rows))


def _split(key: Any) -> tuple[Any, tuple[Any, ...]]:
    if isinstance(key, tuple) and key:
        return key[0], key[1:]
    return key, ()


def _is_integer(key: Any) -> bool:
    return isinstance(key, int | np.integer) and not isinstance(key, bool)


class _RowError(tf.errors.InvalidArgumentError, IndexError):
    """TensorFlow's error of a row that is not there, and Python's."""


def _row_number(key: Any, num_rows: int) -> int:
    """Returns the row of an integer, which may count from the end."""
    row = int(key) + (num_rows if key < 0 else 0)
    if 0 <= row < num_rows:
        return row
    text = (
        f"slice index {row} of dimension 0 out of bounds: the variable has "
        f"the rows 0 to {num_rows - 1}. Received: index={key}"
    )
    # The same errors as for any tensor or variable.
    if tf.executing_eagerly():
        raise _RowError(None, None, text)
    raise ValueError(text)
