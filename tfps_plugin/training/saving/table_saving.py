"""Saves and loads large tables in blocks of rows.

Keras makes an array of a variable to write it to a file, and reads an array
to assign it. The chief has no room for a table. Here rows go from their ps to
the file, and back, block by block. The files are Keras's own.
"""

import dataclasses
import functools
import math
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat import keras_saving as compat
from tfps_plugin._compat.keras_optimizers import TFOptimizer
from tfps_plugin.training.saving.stored_array import StoredArray
from tfps_plugin.training.saving.stored_array import dtype_of
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.row_lookup import Table
from tfps_plugin.variables.saving import shard_reader
from tfps_plugin.variables.saving import shard_writer

_thread_local = threading.local()

# What gives some of its rows without the others.
_SLICEABLE = (np.ndarray, StoredArray, tf.Tensor, tf.Variable, Table)


def install() -> None:
    """Gives Keras's stores, variables and optimizers what follows."""
    store = compat.H5IOStore
    store.__setitem__ = write_in_blocks(store.__setitem__)
    store.__getitem__ = read_in_blocks(store.__getitem__)
    sharded = compat.ShardedH5IOStore
    sharded.__setitem__ = write_to_one_of_many(sharded.__setitem__)
    compat.set_load_state(load_in_blocks(compat.get_load_state()))
    compat.set_is_memory_sufficient(
        never_for_tables(compat.get_is_memory_sufficient())
    )
    variable = keras_compat.Variable
    variable.assign = assign_in_blocks(variable.assign)
    TFOptimizer.save_own_variables = save_variables_themselves(
        TFOptimizer.save_own_variables
    )


# What is saved.


@dataclasses.dataclass(frozen=True)
class TableRows:
    """Rows of a table that go into a file; a store of Keras's takes them.

    Attributes:
        table: What has the rows.
        rows: Which; consecutive.
    """

    table: Table
    rows: range

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all the rows together."""
        return len(self.rows), *self.table.shape.as_list()[1:]

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the elements."""
        return np.dtype(self.table.dtype.as_numpy_dtype)

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Each block, and the position of its first row among these."""
        for first, block in shard_reader.fetch_blocks(self.table, self.rows):
            yield first - self.rows.start, block

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """All rows as an array in this process."""
        array = np.empty(self.shape, self.dtype if dtype is None else dtype)
        for start, block in self.blocks():
            array[start : start + len(block)] = block
        return array


@dataclasses.dataclass(frozen=True)
class _Outline:
    """Passes for an array of which shape and dtype matter, and needs no room.

    `np.array` trusts an `__array__` that takes `copy` and does not copy again
    (NumPy 1 does: then it costs room, for a while).
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)


def large_rows(value: Any) -> TableRows | None:
    """The rows of a value that has to be saved in blocks.

    Args:
        value: Anything; a variable, usually.

    Returns:
        All its rows; None if it can be saved as it is.
    """
    if isinstance(value, TableRows):
        return value
    found = row_lookup.table_behind(value)
    if found is None or not shard_reader.is_large(found[0]):
        return None
    return TableRows(found[0], range(found[0].layout.num_rows))


def rows_of(variable: Any, rows: range) -> np.ndarray:
    """Some rows of a variable on parameter servers, as an array here.

    Args:
        variable: A `keras.Variable`, or its value.
        rows: Which rows; consecutive.
    """
    found = row_lookup.table_behind(variable)
    if found is None:
        return np.asarray(variable[rows.start : rows.stop])
    return np.asarray(TableRows(found[0], rows))


def rows_for(store: Any, variable: Any, rows: range) -> TableRows | None:
    """What a layer gives a store to have some rows of a table saved.

    Args:
        store: What `save_own_variables` was given.
        variable: A `keras.Variable`.
        rows: Which rows; consecutive.

    Returns:
        None where the store needs an array, or the table is small.
    """
    large = large_rows(variable)
    if large is None or not isinstance(store, compat.H5IOStore):
        return None
    return TableRows(large.table, rows)


def _has_large(saveable: Any) -> bool:
    """Whether a layer, optimizer or model has a large table of ours."""
    variables = getattr(saveable, "variables", ())
    return isinstance(variables, list | tuple) and any(
        large_rows(variable) is not None for variable in variables
    )


# Saving.


def write_in_blocks(original: Callable[..., None]) -> Callable[..., None]:
    """`store[key] = value` that never holds a large table."""

    @functools.wraps(original)
    def write(self: Any, key: str, value: Any) -> None:
        rows = getattr(_thread_local, "outlined", None) or large_rows(value)
        if rows is None or self.mode == "r":
            return original(self, key, value)
        return compat.write_dataset(
            self, key, rows.shape, rows.dtype, rows.blocks()
        )

    return write


def write_to_one_of_many(original: Callable[..., None]) -> Callable[..., None]:
    """The same for a store that splits weights into several files.

    Keras chooses the file by the size, from an array, and then calls the
    method above with it.
    """

    @functools.wraps(original)
    def write(self: Any, key: str, value: Any) -> None:
        rows = large_rows(value)
        if rows is None:
            return original(self, key, value)
        _thread_local.outlined = rows
        try:
            return original(self, key, _Outline(rows.shape, rows.dtype))
        finally:
            _thread_local.outlined = None

    return write


def save_variables_themselves(
    original: Callable[..., None],
) -> Callable[..., None]:
    """An optimizer's `save_own_variables` that gives large slots as they are.

    Keras gives the store arrays.
    """

    @functools.wraps(original)
    def save(self: Any, store: Any) -> None:
        if not isinstance(store, compat.H5IOStore) or not _has_large(self):
            return original(self, store)
        for index, variable in enumerate(self.variables):
            store[str(index)] = variable
        return None

    return save


def never_for_tables(
    original: Callable[[Any], bool],
) -> Callable[[Any], bool]:
    """`is_memory_sufficient` that says no where tables are large."""

    @functools.wraps(original)
    def is_sufficient(model: Any) -> bool:
        return not _has_large(model) and original(model)

    return is_sufficient


# Loading.


def load_in_blocks(original: Callable[..., None]) -> Callable[..., None]:
    """Loads what has large tables from arrays that are not read yet."""

    @functools.wraps(original)
    def load(saveable: Any, *args: Any, **kwargs: Any) -> None:
        before = getattr(_thread_local, "lazy", False)
        # Asked for everything that is inside, too: what is not ours gets
        # arrays, as ever.
        _thread_local.lazy = _has_large(saveable)
        try:
            original(saveable, *args, **kwargs)
        finally:
            _thread_local.lazy = before

    return load


def read_in_blocks(original: Callable[..., Any]) -> Callable[..., Any]:
    """`store[key]` that does not read large arrays for large tables."""

    @functools.wraps(original)
    def read(self: Any, key: str) -> Any:
        if not getattr(_thread_local, "lazy", False):
            return original(self, key)
        dataset = compat.find_dataset(self, key)
        if dataset is None or not _is_large(dataset.shape, dtype_of(dataset)):
            return original(self, key)
        return StoredArray(dataset)

    return read


def assign_in_blocks(original: Callable[..., Any]) -> Callable[..., Any]:
    """`keras.Variable.assign` that sends a large value block by block.

    Keras makes one tensor of it before.
    """

    @functools.wraps(original)
    def assign(self: Any, value: Any) -> Any:
        table = self._value
        if (
            not isinstance(table, Table)
            or not tf.executing_eagerly()
            or keras_compat.in_stateless_scope()
        ):
            return original(self, value)
        if isinstance(value, keras.Variable):
            value = value._value
        if not isinstance(value, _SLICEABLE) or not _is_large(
            value.shape, tf.as_dtype(value.dtype).as_numpy_dtype
        ):
            return original(self, value)
        if tuple(value.shape) != tuple(self.shape):
            # Keras's words; it would print the values, which are far away.
            raise ValueError(
                "The shape of the target variable and the shape of the target "
                "value in `variable.assign(value)` must match. "
                f"variable.shape={self.shape}, Received: "
                f"value.shape={value.shape}. Target variable: "
                f"<Variable path={self.path}, shape={self.shape}, "
                f"dtype={self.dtype}>"
            )

        def read(start: int, stop: int) -> tf.Tensor:
            block = (
                rows_of(value, range(start, stop))
                if isinstance(value, Table)
                else value[start:stop]
            )
            return tf.cast(
                self._convert_to_tensor(block, dtype=self._dtype),
                table.dtype,
            )

        shard_writer.assign_blocks(table, "assign", read)
        return table

    return assign


def _is_large(shape: Any, dtype: Any) -> bool:
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    return num_bytes > shard_reader.BLOCK_BYTES
