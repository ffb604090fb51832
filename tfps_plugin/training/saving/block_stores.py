"""Keras's files of weights, with large tables in blocks.

Keras converts a variable to an array to write it to a file, and reads an array
to assign it. A table does not fit into the chief's memory. Here rows go from
their ps to the file, and back, block by block. The format is Keras's own.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tfps_plugin._compat import keras_saving as compat
from tfps_plugin.training.saving import table_rows
from tfps_plugin.training.saving.stored_array import StoredArray
from tfps_plugin.training.saving.stored_array import dtype_of
from tfps_plugin.training.saving.table_rows import TableRows
from tfps_plugin.training.saving.table_rows import large_rows


class BlockStore(compat.H5IOStore):
    """The store behind a file of weights.

    Attributes:
        loads_tables: Whether the object that is being loaded has large tables.
    """

    loads_tables = False
    # Rows to write to the file instead of the next value.
    _outlined: TableRows | None = None

    def __setitem__(self, key: str, value: Any) -> None:
        rows = self._outlined or large_rows(value)
        if rows is None or self.mode == "r":
            super().__setitem__(key, value)
        else:
            compat.write_dataset(
                self, key, rows.shape, rows.dtype, rows.blocks()
            )

    def __getitem__(self, key: str) -> Any:
        dataset = compat.find_dataset(self, key) if self.loads_tables else None
        if dataset is None or not table_rows.is_large(
            dataset.shape, dtype_of(dataset)
        ):
            return super().__getitem__(key)
        return StoredArray(dataset)


class ShardedBlockStore(compat.ShardedH5IOStore, BlockStore):
    """The store behind weights that are split into several files."""

    def __setitem__(self, key: str, value: Any) -> None:
        rows = large_rows(value)
        if rows is None:
            super().__setitem__(key, value)
            return
        # Keras chooses the file by the size of the array.
        self._outlined = rows
        try:
            super().__setitem__(key, _Outline(rows.shape, rows.dtype))
        finally:
            self._outlined = None


@dataclasses.dataclass(frozen=True)
class _Outline:
    """Shape and dtype of an array, without its memory.

    `np.array` does not copy the result of an `__array__` that takes `copy`.
    (NumPy 1 does, which takes memory for a while.)
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)


def rows_for(store: Any, variable: Any, rows: range) -> TableRows | None:
    """Returns the object that a layer stores to save some rows of a table.

    Args:
        store: The store given to `save_own_variables`.
        variable: A `keras.Variable`.
        rows: Consecutive rows.

    Returns:
        None if the store needs an array, or if the table is small.
    """
    large = large_rows(variable)
    if large is None or not isinstance(store, BlockStore):
        return None
    return TableRows(large.table, rows)


# Wrappers.


def block_store(_: type) -> type:
    """Returns the class that replaces Keras's `H5IOStore`."""
    return BlockStore


def sharded_block_store(_: type) -> type:
    """Returns the class that replaces Keras's `ShardedH5IOStore`."""
    return ShardedBlockStore


def save_variables_themselves(
    original: Callable[..., None],
) -> Callable[..., None]:
    """Returns a `save_own_variables` of optimizers for large slots.

    Keras's own method stores arrays.
    """

    @functools.wraps(original)
    def save(self: Any, store: Any) -> None:
        if not isinstance(store, BlockStore) or not _has_large(self):
            return original(self, store)
        for index, variable in enumerate(self.variables):
            store[str(index)] = variable
        return None

    return save


def never_for_tables(
    original: Callable[[Any], bool],
) -> Callable[[Any], bool]:
    """Returns an `is_memory_sufficient` that is false for large tables."""

    @functools.wraps(original)
    def is_sufficient(model: Any) -> bool:
        return not _has_large(model) and original(model)

    return is_sufficient


def load_in_blocks(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a `_load_state` that tells the store if tables are large."""

    @functools.wraps(original)
    def load(
        saveable: Any, weights_store: Any, *args: Any, **kwargs: Any
    ) -> None:
        if not isinstance(weights_store, BlockStore):
            return original(saveable, weights_store, *args, **kwargs)
        before = weights_store.loads_tables
        # Also called for each inner object: those without our tables get
        # arrays, as usual.
        weights_store.loads_tables = _has_large(saveable)
        try:
            return original(saveable, weights_store, *args, **kwargs)
        finally:
            weights_store.loads_tables = before

    return load


def _has_large(saveable: Any) -> bool:
    """Returns whether a layer, optimizer or model has large tables of ours."""
    variables = getattr(saveable, "variables", ())
    return isinstance(variables, list | tuple) and any(
        large_rows(variable) is not None for variable in variables
    )
