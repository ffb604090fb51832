"""Private Keras API: files of weights.

Keras has no way to say how a large variable is written or read; its stores
take and give whole arrays.

Checked against Keras 3.12 to 3.15.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras.src.saving import saving_lib

# The stores behind `.weights.h5` and `.keras` files, and behind weights that
# are split into several files.
from keras.src.saving.saving_lib import H5IOStore as H5IOStore
from keras.src.saving.saving_lib import ShardedH5IOStore as ShardedH5IOStore

# What makes SavedModels of models; the public name is a factory since Keras
# 3.14.
ExportArchive: Any = next(
    kind
    for kind in type(keras.export.ExportArchive()).__mro__
    if "_filter_and_track_resources" in vars(kind)
)


def write_dataset(
    store: Any,
    key: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    blocks: Iterable[tuple[int, np.ndarray]],
) -> None:
    """Does what `store[key] = array` does, without the array.

    Byte by byte: the file is the same.

    Args:
        store: A `H5IOStore` that is written.
        key: Name of the variable in the entry that is written.
        shape: Shape of the array.
        dtype: Dtype of the array.
        blocks: First row and values of consecutive rows.
    """
    if not store._h5_entry_initialized:
        store._create_h5_group(store._h5_entry_path)
    group = store._h5_entry_group
    # HDF5 does not know the type: Keras notes it beside the bytes.
    is_foreign = dtype.name == "bfloat16"
    dataset = group.create_dataset(
        key if is_foreign else None, shape=shape, dtype=dtype
    )
    for start, block in blocks:
        dataset[start : start + len(block)] = block
    if is_foreign:
        dataset.attrs["dtype"] = dtype.name
    else:
        group[key] = dataset


def find_dataset(store: Any, key: str) -> Any:
    """What `store[key]` reads, after Keras's checks that it is harmless.

    Args:
        store: A `H5IOStore` that is read.
        key: Name of the variable in the present entry.

    Returns:
        The `h5py.Dataset`; None if this Keras has no checks that we know.

    Raises:
        KeyError: If there is none.
        ValueError: If it is not harmless.
    """
    group = store._h5_entry_group
    if hasattr(saving_lib, "safe_get_h5_dataset"):
        return saving_lib.safe_get_h5_dataset(group, key)
    # Keras 3.13.
    if hasattr(store, "_verify_dataset"):
        return store._verify_dataset(group[key])
    return None


def get_load_state() -> Callable[..., None]:
    """What loads one layer, optimizer or metric, and all that is in it."""
    return saving_lib._load_state


def set_load_state(load_state: Callable[..., None]) -> None:
    """Has Keras load with `load_state`, whose first argument is loaded."""
    saving_lib._load_state = load_state


def get_walk() -> Callable[[Any], Iterator[tuple[str, Any]]]:
    """What looks at each attribute of a layer for more to save, or load."""
    return saving_lib._walk_saveable


def set_walk(walk: Callable[[Any], Iterator[tuple[str, Any]]]) -> None:
    """Has Keras look at attributes with `walk`."""
    saving_lib._walk_saveable = walk


def get_is_memory_sufficient() -> Callable[[Any], bool]:
    """Whether the file inside a `.keras` archive is made in memory."""
    return saving_lib.is_memory_sufficient


def set_is_memory_sufficient(is_sufficient: Callable[[Any], bool]) -> None:
    """Has Keras ask `is_sufficient(model)`; otherwise it uses the disk."""
    saving_lib.is_memory_sufficient = is_sufficient
