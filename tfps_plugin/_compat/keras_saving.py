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


# Property of an embedding layer that merges LoRA into the table.
MERGED = "embeddings"


class _Showing:
    """A layer that shows another value as its embeddings."""

    def __init__(self, layer: Any, embeddings: Any) -> None:
        self._layer = layer
        self.embeddings = embeddings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def _get_embeddings_with_merged_lora(self) -> Any:
        # Not the layer's bound method, which would use the layer's table.
        return type(self._layer)._get_embeddings_with_merged_lora(self)


class _SomeRows:
    """A layer with some of its rows, for Keras's own merge."""

    def __init__(self, layer: Any, rows: Any, a: Any) -> None:
        self._layer = layer
        self._embeddings = keras.ops.convert_to_tensor(rows)
        self.lora_embeddings_a = keras.ops.convert_to_tensor(a)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def showing(layer: Any, embeddings: Any) -> Any:
    """Returns a layer whose `save_own_variables` saves another table.

    Args:
        layer: A `keras.layers.Embedding`.
        embeddings: The value to save instead of its table.
    """
    return _Showing(layer, embeddings)


def table_with_lora(layer: Any) -> Any:
    """Returns the table of an embedding layer that LoRA adds to, or None.

    A quantized layer merges in another way, which is correct as it is.
    """
    if not getattr(layer, "lora_enabled", False) or (
        layer.quantization_mode is not None
    ):
        return None
    return layer._embeddings


def merged_embeddings(layer: Any, rows: np.ndarray, a: np.ndarray) -> Any:
    """Merges some rows of a layer's table, as Keras merges all of them.

    Args:
        layer: A `keras.layers.Embedding`.
        rows: Rows of the table.
        a: The same rows of `lora_embeddings_a`.
    """
    merge = keras.layers.Embedding.embeddings.fget
    return merge(_SomeRows(layer, rows, a))


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
