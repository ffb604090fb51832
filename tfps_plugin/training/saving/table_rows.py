"""Rows of a large table, read and written block by block."""

import dataclasses
import math
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.training.saving.stored_array import StoredArray
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.lookup.table import table_behind
from tfps_plugin.variables.saving import shard_reader
from tfps_plugin.variables.saving import shard_writer

# Types whose rows can be read without the others.
_SLICEABLE = (np.ndarray, StoredArray, tf.Tensor, tf.Variable, Table)


@dataclasses.dataclass(frozen=True)
class TableRows:
    """Rows of a table to be written to a file by a store of Keras.

    Attributes:
        table: The table.
        pieces: Ranges of rows, one behind the other in the file.
    """

    table: Table
    pieces: Sequence[range]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all the rows together."""
        num_rows = sum(map(len, self.pieces))
        return num_rows, *self.table.shape.as_list()[1:]

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the elements."""
        return np.dtype(self.table.dtype.as_numpy_dtype)

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields each block with the position of its first row."""
        start = 0
        for block in shard_reader.fetch_pieces(self.table, self.pieces):
            yield start, block
            start += len(block)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Returns all rows as an array in this process."""
        array = np.empty(self.shape, self.dtype if dtype is None else dtype)
        for start, block in self.blocks():
            array[start : start + len(block)] = block
        return array


def large_rows(value: Any) -> TableRows | None:
    """Returns the rows of a value that must be saved in blocks.

    Args:
        value: Any object; usually a variable.

    Returns:
        All its rows; None if it can be saved as it is.
    """
    if isinstance(value, TableRows):
        return value
    found = table_behind(value)
    if found is None or not shard_reader.is_large(found[0]):
        return None
    return TableRows(found[0], [range(found[0].layout.num_rows)])


def rows_of(variable: Any, pieces: Sequence[range]) -> np.ndarray:
    """Returns rows of a variable on parameter servers as a local array.

    Args:
        variable: A `keras.Variable`, or its value.
        pieces: Ranges of rows.
    """
    found = table_behind(variable)
    if found is None:
        return np.concatenate(
            [np.asarray(variable[rows.start : rows.stop]) for rows in pieces]
        )
    return np.asarray(TableRows(found[0], pieces))


def is_large(shape: Any, dtype: Any) -> bool:
    """Returns whether an array takes more than one block.

    Args:
        shape: Full shape.
        dtype: Dtype of the elements, as NumPy knows it.
    """
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    return num_bytes > shard_reader.BLOCK_BYTES


def assign_in_blocks(variable: Any, value: Any) -> bool:
    """Assigns a large value to a table block by block.

    Keras's own `assign` first converts it to one tensor.

    Args:
        variable: A `keras.Variable`.
        value: Any value that it can be assigned.

    Returns:
        False if nothing was assigned: Keras's own method will do.
    """
    table = keras_compat.value_of(variable)
    if (
        not isinstance(table, Table)
        or not tf.executing_eagerly()
        or keras_compat.in_stateless_scope()
    ):
        return False
    if isinstance(value, keras.Variable):
        value = keras_compat.value_of(value)
    if not isinstance(value, _SLICEABLE) or not is_large(
        value.shape, tf.as_dtype(value.dtype).as_numpy_dtype
    ):
        return False
    if tuple(value.shape) != tuple(variable.shape):
        # Keras's message, without the values, which are on the ps.
        raise ValueError(
            "The shape of the target variable and the shape of the target "
            "value in `variable.assign(value)` must match. "
            f"variable.shape={variable.shape}, Received: "
            f"value.shape={value.shape}. Target variable: "
            f"<Variable path={variable.path}, shape={variable.shape}, "
            f"dtype={variable.dtype}>"
        )

    def read(start: int, stop: int) -> tf.Tensor:
        block = (
            rows_of(value, [range(start, stop)])
            if isinstance(value, Table)
            else value[start:stop]
        )
        return tf.cast(keras_compat.converted_for(variable, block), table.dtype)

    shard_writer.assign_blocks(table, "assign", read)
    return True
