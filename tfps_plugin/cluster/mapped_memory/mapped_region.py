"""Memory of one variable, whose pages are those of a file."""

import ctypes
import os
import tempfile
import threading

import numpy as np

from tfps_plugin.cluster.mapped_memory import page_calls
from tfps_plugin.cluster.mapped_memory.page_calls import PAGE_BYTES
from tfps_plugin.cluster.mapped_memory.page_uses import PageUses
from tfps_plugin.cluster.mapped_memory.page_uses import runs

# More than the limit is given up at once, so that there is room for a while.
_SLACK = 0.05
_COPIED_AT_ONCE = 16 << 20


class MappedRegion:
    """The whole pages of a variable's memory, in a file without a name.

    The file is gone when the process ends, however it ends. The pieces of the
    first and last page that the variable shares with others stay as they are.

    Threading: safe from any thread. Guarded by `_lock`: the uses of pages, and
    the numbers of pages; it is never held while the disk is waited for.
    Guarded by `_limiting`: the pages that are being given up.
    """

    def __init__(
        self, array: np.ndarray, folder: str, share_in_memory: float
    ) -> None:
        """Moves the memory of an array to a file; its contents become zero.

        Args:
            array: All rows of a variable, at the variable's own address.
            folder: Folder of the file; "" for that of temporary files.
            share_in_memory: Share of the pages that stay in memory.

        Raises:
            OSError: If the file cannot be made, or the disk has no room.
        """
        self._address: int = array.ctypes.data
        self._array_bytes = array.nbytes
        self._begin = -(-self._address // PAGE_BYTES) * PAGE_BYTES
        end = (self._address + array.nbytes) // PAGE_BYTES * PAGE_BYTES
        self.num_bytes = max(0, end - self._begin)
        self._row_bytes = array.nbytes // max(1, len(array))
        num_pages = self.num_bytes // PAGE_BYTES
        self.most_pages = int(share_in_memory * num_pages)
        # Pages that are in memory, or are about to be.
        self._num_present = 0
        # Pages whose reading has begun because a lookup needed them.
        self.num_read = 0
        # First bytes and sizes of pages that may be on their way to the disk.
        self._leaving: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._limiting = threading.Lock()
        self._uses = PageUses(num_pages, PAGE_BYTES)
        folder = folder or tempfile.gettempdir()
        os.makedirs(folder, exist_ok=True)
        if page_calls.is_in_memory(folder):
            raise OSError(f"The directory {folder} is itself in memory.")
        self._descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        try:
            if num_pages:
                # Without it, a full disk would end the process.
                os.posix_fallocate(self._descriptor, 0, self.num_bytes)
                page_calls.map_over(
                    self._begin, self.num_bytes, self._descriptor
                )
                page_calls.without_neighbors(self._begin, self.num_bytes)
            self._inode = os.fstat(self._descriptor).st_ino
        except OSError:
            os.close(self._descriptor)
            raise

    def is_mapped(self, inodes: dict[int, int]) -> bool:
        """Returns whether the memory is still this region's.

        Args:
            inodes: Result of `page_calls.inodes_in_use`.
        """
        return inodes.get(self._begin) == self._inode

    def bring(self, rows_N: np.ndarray, now: int) -> None:
        """Begins to read the rows that may not be in memory.

        Args:
            rows_N: Row numbers.
            now: Time of their use, above zero.
        """
        shift = self._address - self._begin
        pages = self._uses.pages_of(rows_N, self._row_bytes, shift)
        with self._lock:
            missing = self._uses.use(pages, now)
            self.num_read += len(missing)
            self._num_present += len(missing)
            is_above = self._num_present > (1 + _SLACK) * self.most_pages
        if is_above:
            # Lookups bring in no more than they make room for.
            self.keep_limit(now)
        for first, number in runs(missing):
            page_calls.read_ahead(
                self._begin + first * PAGE_BYTES, number * PAGE_BYTES
            )

    def mark(self) -> int:
        """Writes to the file of a region that nobody has changed yet.

        Returns:
            A row whose first byte is not zero any more; -1 if the region is
            too small to have whole rows.
        """
        row = self._array_bytes // self._row_bytes // 2
        place = row * self._row_bytes + self._address - self._begin
        if not 0 <= place < self.num_bytes:
            return -1
        os.pwrite(self._descriptor, b"\1", place)
        return row

    def num_resident_pages(self) -> int:
        """Returns the number of pages in memory."""
        return int(
            np.count_nonzero(
                page_calls.are_resident(self._begin, self.num_bytes)
            )
        )

    def keep_limit(self, now: int, *, waits: bool = False) -> None:
        """Gives up the pages that were used least, if there are too many.

        Args:
            now: Time of the latest use.
            waits: Whether to wait until they are on the disk. Otherwise, those
                that have changed are given up by the next call.
        """
        with self._limiting:
            self._keep_limit(now, waits)

    def _keep_limit(self, now: int, waits: bool) -> None:
        # What was changed is on the disk by now.
        page_calls.drop(self._descriptor, self._leaving)
        self._leaving = []
        are_resident = page_calls.are_resident(self._begin, self.num_bytes)
        num_resident = int(np.count_nonzero(are_resident))
        excess = num_resident - self.most_pages
        if excess <= 0:
            with self._lock:
                self._num_present = num_resident
            return
        with self._lock:
            chosen = self._uses.least_used(
                are_resident, excess + int(_SLACK * self.most_pages), now
            )
            self._num_present = num_resident - len(chosen)
        self._leaving = [
            (first * PAGE_BYTES, number * PAGE_BYTES)
            for first, number in runs(chosen)
        ]
        for first, num_bytes in self._leaving:
            page_calls.page_out(self._begin + first, num_bytes)
        # Begins to write those that have changed.
        page_calls.drop(self._descriptor, self._leaving)
        if waits:
            page_calls.wait_for_writes(self._descriptor, self._leaving)
            self._keep_limit(now, waits=False)

    def copy_to(self, other: "MappedRegion", now: int) -> None:
        """Copies the contents to the region of an array of the same size.

        The copy keeps its limit meanwhile.

        Args:
            other: The region of the array.
            now: Time of the latest use.
        """
        for start in range(0, self._array_bytes, _COPIED_AT_ONCE):
            ctypes.memmove(
                other._address + start,
                self._address + start,
                min(_COPIED_AT_ONCE, self._array_bytes - start),
            )
            other.keep_limit(now, waits=True)

    def close(self) -> None:
        """Closes the file; what is mapped stays."""
        os.close(self._descriptor)
