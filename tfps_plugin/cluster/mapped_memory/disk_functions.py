"""Functions of a parameter server that move variables to its disk.

A chief calls them as operations on the device of the parameter server, see
`variables/storage/on_disk.py`. They get TensorFlow's tensors as arrays: the
array of a variable is the variable's own memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tfps_plugin.cluster.mapped_memory import tensor_memory
from tfps_plugin.cluster.mapped_memory.page_calls import PAGE_BYTES
from tfps_plugin.cluster.mapped_memory.region_board import RegionBoard

MAP = "tfps_plugin/map"
MARK = "tfps_plugin/mark"
BRING = "tfps_plugin/bring"
COPY = "tfps_plugin/copy"
COUNTS = "tfps_plugin/counts"

# Result for memory that a tensor shares with others.
SHARED = -2
# Result for a variable that is in memory.
IN_MEMORY = -3


class DiskFunctions:
    """The functions of one process, by the names that chiefs call them by.

    Threading: safe from any thread.
    """

    def __init__(self) -> None:
        """Begins without regions."""
        self._board = RegionBoard()

    def by_name(self) -> dict[str, Callable[..., Any]]:
        """Returns the functions."""
        return {
            MAP: self.map,
            MARK: self.mark,
            BRING: self.bring,
            COPY: self.copy,
            COUNTS: self.counts,
        }

    def map(
        self, array: np.ndarray, name: bytes, folder: bytes, share: np.ndarray
    ) -> np.int64:
        """Moves a variable to a file, full of zeros.

        Args:
            array: All rows of a variable, in the variable's own memory.
            name: Name of its region.
            folder: Folder of the file.
            share: Share of its pages that stay in memory.

        Returns:
            The row that `mark` marks, -1 if there is none; `SHARED`: nothing
            was done.
        """
        if not _is_alone(array):
            return np.int64(SHARED)
        region = self._board.add(
            name.decode(), array, folder.decode(), float(share)
        )
        return np.int64(region.row_to_mark)

    def mark(self, name: bytes) -> np.int64:
        """Makes the first byte of a row in a file other than zero.

        The chief reads the row, to see that a variable is in the file.

        Args:
            name: Name of the region, which nobody has changed yet.

        Returns:
            Zero; `IN_MEMORY`: the variable has left the file.
        """
        is_there = self._board.mark(name.decode())
        return np.int64(0 if is_there else IN_MEMORY)

    def bring(self, rows_N: np.ndarray, names: np.ndarray) -> np.int64:
        """Begins to read rows.

        Args:
            rows_N: Row numbers.
            names: Names of the regions of a variable and its slots.

        Returns:
            Zero.
        """
        self._board.bring([name.decode() for name in names], rows_N)
        return np.int64(0)

    def copy(
        self,
        array: np.ndarray,
        name: bytes,
        folder: bytes,
        share: np.ndarray,
        source: bytes,
    ) -> np.int64:
        """Gives a new tensor a file with the contents of a variable.

        Args:
            array: The tensor.
            name: As for `map`.
            folder: As for `map`.
            share: As for `map`.
            source: Name of the variable's region.

        Returns:
            Zero; `SHARED`: nothing was done, because the tensor cannot have a
            file; `IN_MEMORY`: because the variable has none.
        """
        if source.decode() not in self._board:
            return np.int64(IN_MEMORY)
        if not _is_alone(array):
            return np.int64(SHARED)
        region = self._board.add(
            name.decode(), array, folder.decode(), float(share)
        )
        self._board.copy(source.decode(), region)
        return np.int64(0)

    def counts(self, name: bytes) -> np.ndarray:
        """Returns bytes of the file, bytes in memory, and pages read.

        Args:
            name: Name of a region. All are zero if it is in memory.
        """
        if name.decode() not in self._board:
            return np.zeros(3, np.int64)
        region = self._board.region(name.decode())
        return np.array(
            [
                region.num_bytes,
                region.num_resident_pages() * PAGE_BYTES,
                region.num_read,
            ],
            np.int64,
        )


def _is_alone(array: np.ndarray) -> bool:
    """Returns whether the memory of a tensor belongs to it alone."""
    return tensor_memory.is_mapping_of_its_own(array.ctypes.data, array.nbytes)
