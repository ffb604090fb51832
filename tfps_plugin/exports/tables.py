"""The tables of an export folder, for a process that serves them."""

import os
import pathlib
import threading
import time
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfps_plugin import errors
from tfps_plugin.exports import snapshot as snapshots
from tfps_plugin.exports.export_folder import MANIFEST
from tfps_plugin.exports.export_folder import ExportFolder
from tfps_plugin.exports.snapshot import Snapshot
from tfps_plugin.exports.table import Table

# How often to begin again because exports were removed while they were read.
_ATTEMPTS = 5


class Tables(Mapping[str, Table]):
    """Tables that `tfps.export_changes` writes, as of the newest export read.

    ```python
    from tfps_plugin import serving

    tables = serving.Tables("exported")
    tables["items"].lookup([7, -3])  # shape (2, 16)
    tables.refresh()  # the number of the new export, or None
    ```

    It needs NumPy, and no TensorFlow.

    Threading: any number of threads may use it while another one refreshes.
    Each sees all of an export or all of the one before; who needs several
    tables of the same export takes them from one `snapshot()`.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Reads the newest export.

        Args:
            directory: The folder that is exported to, on a file system of this
                machine.

        Raises:
            FileNotFoundError: If nothing has been exported there yet.
            ExportUnreadableError: If an export is damaged.
        """
        self._folder = ExportFolder(pathlib.Path(directory))
        self._refreshing = threading.Lock()
        # Replaced as a whole, by the thread that holds the lock.
        self._snapshot = self._read(None)

    def refresh(self) -> int | None:
        """Reads what was exported since the last time.

        Only changes are read, if the exports since then are still there. If an
        exception is raised, the tables stay as they are.

        Returns:
            The number of the newest export; None if there is no new one.

        Raises:
            FileNotFoundError: If the exports are gone.
            ExportUnreadableError: If an export is damaged.
        """
        with self._refreshing:
            before = self._snapshot
            self._snapshot = self._read(before)
            if self._snapshot is before:
                return None
            return self._snapshot.export.number

    def snapshot(self) -> Snapshot:
        """Returns all tables at one export, which stay as they are."""
        return self._snapshot

    def __getitem__(self, name: str) -> Table:
        tables = self._snapshot.tables
        if name not in tables:
            raise KeyError(
                f"No table {name!r} was exported to {self._folder.path}. "
                f"Those exported: {sorted(tables)}"
            )
        return tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._snapshot.tables)

    def __len__(self) -> int:
        return len(self._snapshot.tables)

    @property
    def dense(self) -> Mapping[str, np.ndarray]:
        """All variables that are no tables, by path."""
        return self._snapshot.dense

    @property
    def version(self) -> int:
        """Number of the export."""
        return self._snapshot.export.number

    @property
    def step(self) -> int:
        """Optimizer step of the export."""
        return self._snapshot.export.step

    @property
    def age(self) -> float:
        """Seconds since the values of the export were read."""
        return max(0.0, time.time() - self._snapshot.export.time)

    def _read(self, before: Snapshot | None) -> Snapshot:
        for _ in range(_ATTEMPTS):
            manifest = self._folder.read()
            if manifest is None:
                break
            try:
                return self._follow(manifest, before)
            except FileNotFoundError:
                # A new base has taken the place of what was to be read.
                if self._folder.read() == manifest:
                    raise
        path = self._folder.path / MANIFEST
        if manifest is None:
            raise FileNotFoundError(
                f"Nothing is exported at {path}. Expected: the folder that a "
                "training program gives tfps.export_changes, after the first "
                "export."
            )
        raise errors.ExportUnreadableError(
            f"The exports of {path} were replaced {_ATTEMPTS} times while they "
            "were read. Export less often, or with a larger compact_at."
        )

    def _follow(self, manifest: Any, before: Snapshot | None) -> Snapshot:
        exports = None
        if before is not None:
            exports = manifest.after(before.export.identity)
        state = before
        if exports is None:
            # It is too far behind, or this is another training.
            exports, state = manifest.exports, None
        for export in exports:
            state = snapshots.after(state, export, self._folder.path)
        if state is None:
            raise errors.ExportUnreadableError(
                f"The manifest in {self._folder.path} lists no export."
            )
        return state
