"""Chain of a full checkpoint and the increments that follow it. Pure.

An increment holds only the rows of tables that have changed since the
checkpoint before it. It is restored by restoring the full checkpoint and then
each increment in order: they form a chain.

Increments are in a folder beside their full checkpoint, so that programs that
do not know them, such as TensorFlow, see only full checkpoints:

    ckpt-10.index, ckpt-10.data-...
    ckpt-10.increments/ckpt-11.index, ckpt-10.increments/ckpt-11.data-...
"""

import dataclasses
import json
import posixpath
import re
from collections.abc import Mapping
from collections.abc import Sequence

# Keys, in an increment, of its description and of the changed rows of a table.
DESCRIPTION_KEY = "_TFPS_INCREMENT"
_FOLDER = ".increments"
_CHANGE = re.compile(r"(.*)/\.TFPS_CHANGES/(\d+)-(\d+)/(\d+)/rows", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Link:
    """A checkpoint that an increment needs.

    Attributes:
        path: Its prefix, relative to the folder of the full one.
        checksum: CRC-32 of its index, which detects another checkpoint of the
            same name.
    """

    path: str
    checksum: int


def folder_of_increments(full: str) -> str:
    """Returns the folder of the increments of a full checkpoint."""
    return full + _FOLDER


def full_one_of(increment: str) -> str:
    """Returns the prefix of the full checkpoint of an increment."""
    return posixpath.dirname(increment).removesuffix(_FOLDER)


def number_of_full(folder: str, name: str) -> int | None:
    """Returns the number of the full checkpoint of a folder of increments.

    Args:
        folder: Name of the folder, such as "ckpt-10.increments".
        name: First part of the names of checkpoints.

    Returns:
        The number; None if it is not a folder of increments.
    """
    match = re.fullmatch(
        rf"{re.escape(name)}-(\d+){re.escape(_FOLDER)}/?", folder
    )
    return int(match[1]) if match else None


def describe(links: Sequence[Link]) -> str:
    """Encodes the description of an increment.

    Args:
        links: The checkpoints that it needs, the full one first.
    """
    return json.dumps([dataclasses.asdict(link) for link in links])


def parse(description: str | bytes) -> list[Link]:
    """Decodes the description of an increment; see `describe`."""
    return [Link(**each) for each in json.loads(description)]


@dataclasses.dataclass(frozen=True)
class Change:
    """One piece of the changed rows of a part of a table, in an increment.

    Attributes:
        key: Key of the table in checkpoints.
        first: First row of the part.
        end: Row after the last row of the part.
        piece: Number of the piece, from 0.
    """

    key: str
    first: int
    end: int
    piece: int

    @property
    def rows_key(self) -> str:
        """Key of the row numbers in the increment; they are int64."""
        return f"{self._prefix}/rows"

    @property
    def values_key(self) -> str:
        """Key of the rows themselves in the increment."""
        return f"{self._prefix}/values"

    @property
    def _prefix(self) -> str:
        part = f"{self.first}-{self.end}/{self.piece}"
        return f"{self.key}/.TFPS_CHANGES/{part}"

    def concerns(self, first: int, end: int) -> bool:
        """Returns whether it may contain rows between `first` and `end`."""
        return self.first < end and first < self.end


def changes_in(keys: Mapping[str, object]) -> dict[str, list[Change]]:
    """Returns the changes in an increment, by the key of their table.

    Args:
        keys: All keys in the increment.
    """
    found: dict[str, list[Change]] = {}
    for name in sorted(keys):
        if match := _CHANGE.fullmatch(name):
            key, first, end, piece = match.groups()
            change = Change(key, int(first), int(end), int(piece))
            found.setdefault(key, []).append(change)
    return found


def to_delete(unwanted: Sequence[int], chains: Mapping[int, int]) -> list[int]:
    """Returns the full checkpoints to delete with all their increments.

    Args:
        unwanted: Numbers of checkpoints that need not be kept.
        chains: For every checkpoint, the number of its full checkpoint.

    Returns:
        Numbers of full checkpoints, oldest first.
    """
    wanted = {full for n, full in chains.items() if n not in set(unwanted)}
    return sorted(set(chains.values()) - wanted)
