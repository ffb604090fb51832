"""All tables at one export."""

import dataclasses
import pathlib
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tfps_plugin import errors
from tfps_plugin.exports import array_files
from tfps_plugin.exports.manifest import Export
from tfps_plugin.exports.manifest import StoredTable
from tfps_plugin.exports.table import Rows
from tfps_plugin.exports.table import Table


@dataclasses.dataclass(frozen=True, eq=False)
class Snapshot:
    """All tables and variables at one export; it does not change.

    Attributes:
        export: Description of the export.
        tables: The tables by name.
        dense: All other variables by path.
    """

    export: Export
    tables: Mapping[str, Table]
    dense: Mapping[str, np.ndarray]


def after(
    before: Snapshot | None, export: Export, folder: pathlib.Path
) -> Snapshot:
    """Returns the snapshot after an export.

    Args:
        before: The snapshot that it follows; None for a base.
        export: The export.
        folder: The folder of all exports.

    Raises:
        ExportUnreadableError: If a file is damaged.
        FileNotFoundError: If a file is gone.
    """
    files = folder / export.folder
    dense = array_files.read_archive(files, export.dense)
    tables = {
        stored.name: _table(before, stored, files, dense)
        for stored in export.tables
    }
    return Snapshot(export, MappingProxyType(tables), MappingProxyType(dense))


def _table(
    before: Snapshot | None,
    stored: StoredTable,
    files: pathlib.Path,
    dense: Mapping[str, np.ndarray],
) -> Table:
    keys = array_files.read_array(files, stored.keys)
    rows = array_files.read_array(files, stored.rows)
    if stored.is_whole:
        base = Rows.of(keys, rows)
        return Table(stored.name, stored.kind, base, stored.unknown, dense)
    table = None if before is None else before.tables.get(stored.name)
    if table is None:
        raise errors.ExportUnreadableError(
            f"The export in {files} has changes of the table {stored.name!r}, "
            "which no export before it has. Remove the export folder: the next "
            "export then writes whole tables."
        )
    removed = array_files.read_array(files, stored.removed)
    return table.with_changes(keys, rows, removed, dense)
