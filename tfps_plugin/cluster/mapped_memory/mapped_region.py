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
# Pages are written together with those between them, if these are not more. An
# order for each page costs up to five times as much, and what was brought in
# rarely changes again before it leaves.
_MOST_BETWEEN = 64
_COPIED_AT_ONCE = 16 << 20


class MappedRegion:
    """The whole pages of a variable's memory, in a file without a name.

    The file is gone when the process ends, however it ends. The pieces of the
    first and last page that the variable shares with others stay as they are.

    Threading: safe from any thread. Guarded by `_lock`: the uses of pages, and
    the pages that leave; it is never held while the disk is waited for.
    Guarded by `_limiting`: one thread at a time makes room.
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
        # Pages that may be on their way to the disk, in order.
        self._leaving = np.zeros(0, np.int64)
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
            is_above = self._num_present + len(self._leaving) > self.most_pages
        if is_above:
            # Lookups bring in no more than they make room for.
            with self._limiting:
                self._make_room(now)
        page_calls.read_ahead(self._addresses(missing))

    @property
    def row_to_mark(self) -> int:
        """A row whose first byte is in the file, -1 if there is none."""
        row = self._array_bytes // self._row_bytes // 2
        return row if 0 <= self._place_of(row) < self.num_bytes else -1

    def mark(self) -> None:
        """Writes to the file, at the row to mark of a region of zeros."""
        if self.row_to_mark >= 0:
            place = self._place_of(self.row_to_mark)
            os.pwrite(self._descriptor, b"\1", place)

    def _place_of(self, row: int) -> int:
        return row * self._row_bytes + self._address - self._begin

    def num_resident_pages(self) -> int:
        """Returns the number of pages in memory."""
        return int(
            np.count_nonzero(
                page_calls.are_resident(self._begin, self.num_bytes)
            )
        )

    def keep_limit(self, now: int, *, waits: bool = False) -> None:
        """Gives up the pages that were used least, if there are too many.

        This looks at what is in memory, whoever has used it.

        Args:
            now: Time of the latest use.
            waits: Whether to wait until they are on the disk. Otherwise, they
                are given up by the next call.
        """
        with self._limiting:
            self._look()
            self._make_room(now)
            if waits and len(self._leaving):
                page_calls.wait_for_writes(
                    self._descriptor, self._spans(self._leaving)
                )
                self._look()

    def _look(self) -> None:
        """Finds out which pages are in memory, and drops those left over."""
        self._let_go()
        are_resident = page_calls.are_resident(self._begin, self.num_bytes)
        with self._lock:
            # They have changed while they were on their way to the disk.
            left = np.flatnonzero(are_resident)
            left = left[~self._uses.are_present(left)]
            self._uses.found(are_resident)
            self._num_present = int(np.count_nonzero(are_resident))
        page_calls.drop(self._descriptor, self._runs(left))

    def _make_room(self, now: int) -> None:
        """Begins to give pages up, if there are too many."""
        self._let_go()
        with self._lock:
            excess = self._num_present - self.most_pages
            if excess <= 0:
                return
            self._leaving = self._uses.give_up(
                excess + int(_SLACK * self.most_pages), now
            )
            self._num_present -= len(self._leaving)
        page_calls.begin_writes(self._descriptor, self._spans(self._leaving))

    def _let_go(self) -> None:
        """Gives up the pages that are on the disk by now."""
        with self._lock:
            # Some may have been used again.
            gone = self._leaving[~self._uses.are_present(self._leaving)]
            self._leaving = self._leaving[:0]
        page_calls.wait_for_writes(self._descriptor, self._spans(gone))
        page_calls.page_out(self._addresses(gone))

    def _addresses(self, pages: np.ndarray) -> np.ndarray:
        ranges = runs(pages) * PAGE_BYTES
        ranges[:, 0] += self._begin
        return ranges.astype(np.uint64)

    def _runs(self, pages: np.ndarray) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = (runs(pages) * PAGE_BYTES).tolist()
        return ranges

    def _spans(self, pages: np.ndarray) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = (
            runs(pages, _MOST_BETWEEN) * PAGE_BYTES
        ).tolist()
        return ranges

    def copy_to(self, other: "MappedRegion", now: int) -> None:
        """Copies the contents to the region of an array of the same size.

        The copy keeps its limit meanwhile.

        Args:
            other: The region of the array.
            now: Time of the latest use.
        """
        for start in range(0, self._array_bytes, _COPIED_AT_ONCE):
            num_bytes = min(_COPIED_AT_ONCE, self._array_bytes - start)
            self._read(start, other._address + start, num_bytes)
            # It is written while the next part is read.
            other.keep_limit(now)
        other.keep_limit(now, waits=True)

    def _read(self, start: int, target: int, num_bytes: int) -> None:
        """Copies bytes of the array to an address."""
        place = start + self._address - self._begin
        first = min(num_bytes, max(0, -place))
        last = max(first, min(num_bytes, self.num_bytes - place))
        # Those beside the file.
        source = self._address + start
        ctypes.memmove(target, source, first)
        ctypes.memmove(target + last, source + last, num_bytes - last)
        # By the file, which the system reads ahead: as memory, it would come
        # one page at a time.
        page_calls.read_to(
            self._descriptor, place + first, target + first, last - first
        )
        pages = np.arange(
            (place + first) // PAGE_BYTES, (place + last) // PAGE_BYTES
        )
        with self._lock:
            pages = pages[~self._uses.are_present(pages)]
        page_calls.drop(self._descriptor, self._runs(pages))

    def close(self) -> None:
        """Closes the file; what is mapped stays."""
        os.close(self._descriptor)
