"""Keras's files of weights, with large tables in blocks.

Keras converts a variable to an array to write it to a file, and reads an array
to assign it. A table does not fit into the chief's memory. Here rows go from
their ps to the file, and back, block by block. The format is Keras's own.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfps_plugin._compat import keras_saving as compat
from tfps_plugin.training.saving import table_rows
from tfps_plugin.training.saving.stored_array import StoredArray
from tfps_plugin.training.saving.stored_array import dtype_of
from tfps_plugin.training.saving.table_rows import TableRows
from tfps_plugin.training.saving.table_rows import large_rows


class BlockStore(compat.H5IOStore):
    """The store behind a file of weights, which takes and gives blocks."""

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
        dataset = compat.find_dataset(self, key)
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


def rows_for(
    store: Any, variable: Any, pieces: Sequence[range]
) -> TableRows | None:
    """Returns the object that a layer stores to save some rows of a table.

    Args:
        store: The store given to `save_own_variables`.
        variable: A `keras.Variable`.
        pieces: Ranges of rows.

    Returns:
        None if the store needs an array, or if the table is small.
    """
    large = large_rows(variable)
    if large is None or not isinstance(store, BlockStore):
        return None
    return TableRows(large.table, pieces)


_IN_BLOCKS = {
    compat.H5IOStore: BlockStore,
    compat.ShardedH5IOStore: ShardedBlockStore,
}
_AS_KERAS_DOES = {ours: of_keras for of_keras, ours in _IN_BLOCKS.items()}


def _store_for(saveable: Any, store: Any) -> Any:
    """Returns a store of the same files for one object.

    Args:
        saveable: A layer, optimizer or model.
        store: Any store of Keras, or None.

    Returns:
        A `BlockStore`. To load an object without large tables: one that gives
        whole arrays.
    """
    is_written = getattr(store, "mode", None) == "w"
    takes_blocks = is_written or _has_large(saveable)
    classes = _IN_BLOCKS if takes_blocks else _AS_KERAS_DOES
    if type(store) not in classes:
        return store
    same = object.__new__(classes[type(store)])
    # One state: Keras goes on with its own object.
    same.__dict__ = store.__dict__
    return same


# `saveable`: the object that this thread saves or loads in blocks.
_thread_local = threading.local()


def is_in_progress(saveable: Any) -> bool:
    """Returns whether Keras saves or loads an object in blocks right now.

    Not its inner objects, nor the one that it belongs to.
    """
    return getattr(_thread_local, "saveable", None) is saveable


# Wrappers.


def in_blocks(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a `_save_state` or `_load_state` for objects with large tables.

    Keras also calls it for each inner object.
    """

    @functools.wraps(original)
    def save_or_load(
        saveable: Any, weights_store: Any, *args: Any, **kwargs: Any
    ) -> None:
        store = _store_for(saveable, weights_store)
        before = getattr(_thread_local, "saveable", None)
        _thread_local.saveable = (
            saveable if isinstance(store, BlockStore) else None
        )
        try:
            original(saveable, store, *args, **kwargs)
        finally:
            _thread_local.saveable = before

    return save_or_load


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


def _has_large(saveable: Any) -> bool:
    """Returns whether a layer, optimizer or model has large tables of ours."""
    variables = getattr(saveable, "variables", ())
    return isinstance(variables, list | tuple) and any(
        large_rows(variable) is not None for variable in variables
    )
