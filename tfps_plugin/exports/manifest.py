"""The manifest: the exports that a reader applies, one after the other.

The first is the base and has whole tables; each of the others has what changed
since the one before it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tfps_plugin.exports import unknown_ids
from tfps_plugin.exports.unknown_ids import ALL_ZEROS
from tfps_plugin.exports.unknown_ids import UnknownIds

# 1 had no rules for ids without a row: it is read, with zeros for them.
FORMAT = 2
_READ_FORMATS = (1, FORMAT)

# Kinds of tables: their keys are ids of any value, or numbers of rows.
BY_ID = "ids"
BY_ROW = "rows"


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """A file of an export.

    Attributes:
        name: Its name in the folder of the export.
        num_bytes: Its size.
        sha256: Checksum of its contents, hexadecimal.
    """

    name: str
    num_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class StoredTable:
    """Rows of one table in one export.

    Attributes:
        name: Name of the table.
        kind: `BY_ID` or `BY_ROW`.
        dtype: Dtype of the rows, as NumPy names it.
        width: Length of a row.
        is_whole: Whether these are all rows: none of earlier exports remains.
        num_rows: Number of rows in this export.
        num_removed: Number of keys that have no row any more.
        keys: File of the keys, int64.
        rows: File of their rows.
        removed: File of the keys that have no row any more.
        unknown: Rule for ids without a row.
    """

    name: str
    kind: str
    dtype: str
    width: int
    is_whole: bool
    num_rows: int
    num_removed: int
    keys: StoredFile
    rows: StoredFile
    removed: StoredFile
    unknown: UnknownIds = ALL_ZEROS

    @property
    def num_bytes(self) -> int:
        """Size of all its files."""
        files = (self.keys, self.rows, self.removed)
        return sum(file.num_bytes for file in files)

    @property
    def signature(self) -> tuple[str, str, str, int]:
        """All that must not change between exports."""
        return self.name, self.kind, self.dtype, self.width


@dataclasses.dataclass(frozen=True)
class Export:
    """One export.

    Attributes:
        number: Its number, from 1.
        identity: A random name that no other export has.
        follows: Identity of the export before it; None for a base.
        step: Optimizer step of the values.
        time: Seconds since 1970 when the values were read.
        tables: The tables, in a fixed order.
        dense: File of all other variables.
    """

    number: int
    identity: str
    follows: str | None
    step: int
    time: float
    tables: tuple[StoredTable, ...]
    dense: StoredFile

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return f"{self.number:08d}-{self.identity}"

    @property
    def num_bytes(self) -> int:
        """Size of all its files."""
        return self.dense.num_bytes + sum(t.num_bytes for t in self.tables)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The exports of a folder.

    Attributes:
        exports: A base, and the exports that follow it.
    """

    exports: tuple[Export, ...]

    @property
    def newest(self) -> Export:
        """The last export."""
        return self.exports[-1]

    def after(self, identity: str | None) -> tuple[Export, ...] | None:
        """Returns the exports that follow one of them.

        Args:
            identity: Identity of an export.

        Returns:
            The exports after it, oldest first; None if it is not there.
        """
        for place, export in enumerate(self.exports):
            if export.identity == identity:
                return self.exports[place + 1 :]
        return None

    def with_export(self, export: Export) -> "Manifest":
        """Returns a manifest that has one more export, or begins with it."""
        if export.follows is None:
            return Manifest((export,))
        return Manifest((*self.exports, export))


def encode(manifest: Manifest) -> str:
    """Returns a manifest as JSON, with a checksum of itself."""
    contents = {"format": FORMAT, **dataclasses.asdict(manifest)}
    sealed = {"sha256": _checksum(contents), "manifest": contents}
    return json.dumps(sealed, indent=1) + "\n"


def decode(text: str | bytes) -> Manifest:
    """Returns the manifest that `encode` has written.

    Args:
        text: The JSON.

    Raises:
        ValueError: If it is damaged, or in another format.
    """
    try:
        sealed = json.loads(text)
        contents, checksum = sealed["manifest"], sealed["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"it is no manifest ({error})") from error
    if _checksum(contents) != checksum:
        raise ValueError("its checksum does not match")
    if contents["format"] not in _READ_FORMATS:
        raise ValueError(
            f"its format is {contents['format']!r}, and this release of "
            f"tfps_plugin reads formats up to {FORMAT}"
        )
    return Manifest(tuple(map(_export, contents["exports"])))


def _checksum(contents: Any) -> str:
    canonical = json.dumps(contents, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _export(fields: Mapping[str, Any]) -> Export:
    return Export(
        **{
            **fields,
            "tables": tuple(map(_table, fields["tables"])),
            "dense": StoredFile(**fields["dense"]),
        }
    )


def _table(fields: Mapping[str, Any]) -> StoredTable:
    files = {
        name: StoredFile(**fields[name]) for name in ("keys", "rows", "removed")
    }
    rules = {}
    if "unknown" in fields:
        rules["unknown"] = unknown_ids.decode(fields["unknown"], fields["name"])
    return StoredTable(**{**fields, **files, **rules})
