"""Regions of this process, and the thread that keeps their limits."""

import logging
import threading
import time
from collections.abc import Sequence

import numpy as np

from tfps_plugin.cluster.mapped_memory import page_calls
from tfps_plugin.cluster.mapped_memory.mapped_region import MappedRegion

_logger = logging.getLogger("tfps_plugin.cluster")

# Between two looks, a fast disk brings in some ten megabytes.
_INTERVAL_SECONDS = 0.1
# A look at a million pages takes some 50 ms; the pause is so many times longer.
_REST = 4.0


class RegionBoard:
    """Regions by the names that chiefs give them.

    Threading: safe from any thread. Guarded by `_lock`: the regions. It is not
    held while the disk is waited for.
    """

    def __init__(self) -> None:
        """Begins without regions, and without a thread."""
        self._lock = threading.Lock()
        self._regions: dict[str, MappedRegion] = {}
        self._thread: threading.Thread | None = None
        # Number of lookups.
        self._now = 0

    def add(
        self, name: str, array: np.ndarray, folder: str, share_in_memory: float
    ) -> MappedRegion:
        """Makes the region of an array, whose contents become zero.

        Args:
            name: Its name; a region of that name is forgotten.
            array: All rows of a variable, at the variable's own address.
            folder: Folder of its file.
            share_in_memory: Share of its pages that stay in memory.

        Raises:
            OSError: If there cannot be such a file.
        """
        region = MappedRegion(array, folder, share_in_memory)
        with self._lock:
            known = self._regions.get(name)
            self._regions[name] = region
            if known is not None:
                known.close()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tfps-mapped-memory", daemon=True
                )
                self._thread.start()
        return region

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return name in self._regions

    def region(self, name: str) -> MappedRegion:
        """Returns a region.

        Raises:
            KeyError: If there is none of this name.
        """
        with self._lock:
            return self._regions[name]

    def mark(self, name: str) -> bool:
        """Marks a row of a region that nobody has changed yet.

        Args:
            name: Its name.

        Returns:
            Whether there is such a region.
        """
        # Under the lock: a region that is dropped closes its file.
        with self._lock:
            region = self._regions.get(name)
            if region is not None:
                region.mark()
            return region is not None

    def copy(self, name: str, target: MappedRegion) -> None:
        """Copies the contents of a region, which nothing changes meanwhile.

        Args:
            name: Its name.
            target: The region of an array of the same size.

        Raises:
            KeyError: If there is none of this name.
        """
        with self._lock:
            source, now = self._regions[name], self._now
        source.copy_to(target, now)

    def bring(self, names: Sequence[str], rows_N: np.ndarray) -> None:
        """Begins to read rows of some regions.

        Args:
            names: Their names; one that is gone is left out.
            rows_N: Row numbers.
        """
        with self._lock:
            self._now += 1
            now = self._now
            regions = [
                region
                for name in names
                if (region := self._regions.get(name)) is not None
            ]
        for region in regions:
            try:
                region.bring(rows_N, now)
            except OSError:
                # It was freed meanwhile. Rows come without being read ahead.
                _logger.debug("Rows cannot be read ahead.", exc_info=True)

    def _run(self) -> None:
        pause = threading.Event()
        began_at = time.monotonic()
        while self._goes_on():
            took = time.monotonic() - began_at
            pause.wait(max(_INTERVAL_SECONDS, _REST * took))
            began_at = time.monotonic()

    def _goes_on(self) -> bool:
        """Keeps limits; returns whether there is anything to come back for."""
        try:
            return self._keep_limits()
        except Exception:
            # Without this thread, all rows would come to memory and stay.
            _logger.exception("Rows were not looked at; the next look may do.")
            return True

    def _keep_limits(self) -> bool:
        """Looks at all regions; returns whether there are any."""
        with self._lock:
            # A region that is added later would not be among them.
            inodes = page_calls.inodes_in_use()
            for name, region in list(self._regions.items()):
                # The variable is gone, or was assigned other memory.
                if not region.is_mapped(inodes):
                    del self._regions[name]
                    region.close()
            regions, now = list(self._regions.values()), self._now
            if not regions:
                self._thread = None
                return False
        for region in regions:
            try:
                region.keep_limit(now)
            except OSError:
                # It was freed meanwhile; the next look finds that out.
                _logger.debug("A region cannot be looked at.", exc_info=True)
        return True
