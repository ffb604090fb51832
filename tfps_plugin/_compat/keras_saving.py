"""Private Keras API: files of weights.

Keras has no hook for writing or reading a large variable; its stores use whole
arrays.

Checked against Keras 3.12 to 3.15.
"""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras.src.saving import saving_lib

# The stores behind `.weights.h5` and `.keras` files, and behind weights that
# are split into several files.
from keras.src.saving.saving_lib import H5IOStore as H5IOStore
from keras.src.saving.saving_lib import ShardedH5IOStore as ShardedH5IOStore

# Class that exports models as SavedModels; the public name is a factory since
# Keras 3.14.
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

    The resulting file is the same, byte by byte.

    Args:
        store: A `H5IOStore` that is being written.
        key: Name of the variable in the entry that is written.
        shape: Shape of the array.
        dtype: Dtype of the array.
        blocks: First row and values of consecutive rows.
    """
    if not store._h5_entry_initialized:
        store._create_h5_group(store._h5_entry_path)
    group = store._h5_entry_group
    # HDF5 does not have the type: Keras stores its name beside the bytes.
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
    """Returns the dataset that `store[key]` reads, after Keras's own checks.

    Args:
        store: A `H5IOStore` that is being read.
        key: Name of the variable in the present entry.

    Returns:
        The `h5py.Dataset`; None if this Keras has no checks that we know.

    Raises:
        KeyError: If there is no such dataset.
        ValueError: If the dataset is unsafe.
    """
    group = store._h5_entry_group
    if hasattr(saving_lib, "safe_get_h5_dataset"):
        return saving_lib.safe_get_h5_dataset(group, key)
    # Keras 3.13.
    if hasattr(store, "_verify_dataset"):
        return store._verify_dataset(group[key])
    return None


def variables_in_archive(archive: Any) -> tuple[list[Any], list[Any]]:
    """Returns the variables that an `ExportArchive` has found.

    Returns:
        The Keras variables of its layers, and TensorFlow's variables that its
        endpoints use.
    """
    root = archive._tf_trackable
    return list(root.variables), list(root._all_variables)


def set_used_variables(archive: Any, used: list[Any]) -> None:
    """Makes an `ExportArchive` save other variables for its endpoints."""
    archive._tf_trackable._all_variables = used
