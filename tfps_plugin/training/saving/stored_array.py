"""An array in a file of weights, read in parts."""

import math
from typing import Any

import h5py
import numpy as np


class StoredArray(np.lib.mixins.NDArrayOperatorsMixin):
    """A large array in an HDF5 file.

    It has the shape and dtype of the array. It reads consecutive rows without
    the others, and the whole array only for operations that need it.
    """

    def __init__(self, dataset: h5py.Dataset) -> None:
        """Reads nothing yet.

        Args:
            dataset: The dataset that Keras wrote, with at least one axis.
        """
        self._dataset = dataset
        # To reopen it: of several files of weights, only one is open.
        self._file = dataset.file.filename
        self._name = dataset.name
        self.shape: tuple[int, ...] = tuple(dataset.shape)
        self.dtype = dtype_of(dataset)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and key.step in (None, 1):
            start, stop, _ = key.indices(self.shape[0])
            return self._read(start, max(start, stop))
        return np.asarray(self)[key]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Returns the whole array, for NumPy's own functions."""
        whole = self._read(0, self.shape[0])
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        """Computes with the whole array."""
        arrays = [
            np.asarray(value) if isinstance(value, StoredArray) else value
            for value in inputs
        ]
        return getattr(ufunc, method)(*arrays, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # Everything else that an array has, such as astype() or T.
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def _read(self, start: int, stop: int) -> np.ndarray:
        if self._dataset:
            return _rows_of(self._dataset, start, stop, self.dtype)
        with h5py.File(self._file, "r") as file:
            return _rows_of(file[self._name], start, stop, self.dtype)


def dtype_of(dataset: h5py.Dataset) -> np.dtype:
    """Returns the dtype of the elements, by name if HDF5 does not have it."""
    name = dataset.attrs.get("dtype")
    # Importing TensorFlow has registered the name with NumPy.
    return np.dtype("bfloat16") if name == "bfloat16" else dataset.dtype


def _rows_of(
    dataset: h5py.Dataset, start: int, stop: int, dtype: np.dtype
) -> np.ndarray:
    rows = np.empty((stop - start, *dataset.shape[1:]), dtype)
    if rows.size:
        dataset.read_direct(rows, np.s_[start:stop])
    return rows
