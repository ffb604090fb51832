"""The folder of exports: begins, commits and removes them.

Each export is written to a folder with a temporary name, which is renamed when
all its files are on the disk. The manifest is replaced last: before that, no
reader takes notice of the export.
"""

import contextlib
import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Iterable
from collections.abc import Mapping

import numpy as np

from tfps_plugin import errors
from tfps_plugin.exports import array_files
from tfps_plugin.exports import manifest as manifests
from tfps_plugin.exports.array_files import ArrayWriter
from tfps_plugin.exports.manifest import Export
from tfps_plugin.exports.manifest import Manifest
from tfps_plugin.exports.manifest import StoredFile
from tfps_plugin.exports.manifest import StoredTable
from tfps_plugin.exports.unknown_ids import UnknownIds

MANIFEST = "manifest.json"
_NEW_MANIFEST = ".manifest.json.new"
_WRITING = ".writing-"
_EXPORT = re.compile(r"\d{8,}-[0-9a-f]{32}")
_DENSE = "dense.npz"

# Keys and rows, some at a time.
Blocks = Iterable[tuple[np.ndarray, np.ndarray]]


class ExportFolder:
    """The folder of the exports of one model.

    Threading: for one thread only. Readers may read meanwhile, in any process.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Names the folder; creates nothing yet.

        Args:
            path: The folder, on a file system of this machine.
        """
        self.path = path

    def read(self) -> Manifest | None:
        """Returns the manifest; None if nothing has been exported.

        Raises:
            ExportUnreadableError: If it is damaged.
        """
        path = self.path / MANIFEST
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return manifests.decode(text)
        except ValueError as error:
            raise errors.ExportUnreadableError(
                f"The manifest {path} of an export cannot be read: {error}. "
                "Expected: what tfps.export_changes writes. Export to a new "
                "folder, or use the release of tfps_plugin that wrote it."
            ) from error

    def begin(self) -> "NewExport":
        """Begins an export, which nobody sees before it is committed.

        Removes what is left of exports that were not committed.
        """
        identity = uuid.uuid4().hex
        writing = self.path / (_WRITING + identity)
        self.path.mkdir(parents=True, exist_ok=True)
        # First: it may have filled the disk.
        self._remove_what_nobody_needs()
        writing.mkdir()
        return NewExport(writing, identity)

    def commit(
        self, new: "NewExport", before: Manifest | None, export: Export
    ) -> None:
        """Makes an export the newest, and removes those nobody needs.

        Args:
            new: The export, with all its files.
            before: The manifest that the export was made for.
            export: Its description.

        Raises:
            ExportUnreadableError: If another program has exported meanwhile.
            OSError: If a file cannot be written. Before the manifest is
                replaced, nothing of the export is left.
        """
        if self.read() != before:
            raise errors.ExportUnreadableError(
                f"Another program has written to the export folder {self.path} "
                "at the same time. Expected one program that exports to a "
                "folder. Give each a folder of its own."
            )
        after = (before or Manifest(())).with_export(export)
        text = manifests.encode(after)
        written = self.path / _NEW_MANIFEST
        try:
            # All that may fail for want of space, before the export is there.
            with written.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(new.path)
            new.path.rename(self.path / export.folder)
            _sync_folder(self.path)
            written.replace(self.path / MANIFEST)
            _sync_folder(self.path)
        finally:
            self._remove_what_nobody_needs(export.folder)

    def _remove_what_nobody_needs(self, new: str | None = None) -> None:
        """Removes all exports that the manifest does not list.

        What cannot be removed now is left to the next export: a reader that
        has a file open on NFS may be in the way.

        Args:
            new: The folder of an export that is or was being committed. Without
                a manifest, which may just not be seen yet on this machine,
                only that one goes.
        """
        with contextlib.suppress(OSError, errors.ExportUnreadableError):
            # Read anew: it may have been replaced, even if that failed.
            manifest = self.read()
            exports = () if manifest is None else manifest.exports
            kept = {export.folder for export in exports}
            for path in self.path.iterdir():
                is_export = path.name == new or (
                    manifest is not None and _EXPORT.fullmatch(path.name)
                )
                if path.name not in kept and (
                    is_export or path.name.startswith(_WRITING)
                ):
                    shutil.rmtree(path, ignore_errors=True)
            (self.path / _NEW_MANIFEST).unlink(missing_ok=True)


class NewExport:
    """The files of an export that is being written.

    Attributes:
        path: Their folder.
        identity: Random name of the export.

    Threading: for one thread only.
    """

    def __init__(self, path: pathlib.Path, identity: str) -> None:
        self.path = path
        self.identity = identity
        self._num_tables = 0

    def add_table(
        self,
        name: str,
        *,
        kind: str,
        dtype: np.dtype,
        width: int,
        is_whole: bool,
        num_rows: int,
        blocks: Blocks,
        removed: np.ndarray,
        unknown: UnknownIds,
    ) -> StoredTable:
        """Writes rows of a table.

        Args:
            name: Name of the table.
            kind: Kind of its keys, of `manifest`.
            dtype: Dtype of its rows.
            width: Length of a row.
            is_whole: Whether these are all rows of the table.
            num_rows: Number of rows in `blocks`.
            blocks: Keys and their rows.
            removed: Keys that have no row any more.
            unknown: Rule for ids without a row.
        """
        prefix = f"table-{self._num_tables:04d}"
        self._num_tables += 1
        keys = ArrayWriter(
            self.path / f"{prefix}.keys.npy", (num_rows,), np.dtype(np.int64)
        )
        rows = ArrayWriter(
            self.path / f"{prefix}.rows.npy", (num_rows, width), dtype
        )
        try:
            for some_keys, some_rows in blocks:
                keys.append(some_keys)
                rows.append(some_rows)
            return StoredTable(
                name=name,
                kind=kind,
                dtype=dtype.str,
                width=width,
                is_whole=is_whole,
                num_rows=num_rows,
                num_removed=len(removed),
                keys=keys.finish(),
                rows=rows.finish(),
                removed=self._add_array(f"{prefix}.removed.npy", removed),
                unknown=unknown,
            )
        finally:
            keys.close()
            rows.close()

    def _add_array(self, name: str, array: np.ndarray) -> StoredFile:
        writer = ArrayWriter(self.path / name, array.shape, array.dtype)
        try:
            writer.append(array)
            return writer.finish()
        finally:
            writer.close()

    def add_dense(self, arrays: Mapping[str, np.ndarray]) -> StoredFile:
        """Writes all other variables.

        Args:
            arrays: Their values by name.
        """
        return array_files.write_archive(self.path / _DENSE, arrays)

    def discard(self) -> None:
        """Removes the files, if they are not committed."""
        shutil.rmtree(self.path, ignore_errors=True)


def _sync_folder(path: pathlib.Path) -> None:
    """Brings the names in a folder to the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
