"""A full checkpoint, and the increments that follow it. Pure.

An increment has only the rows of tables that have changed since the checkpoint
before it. It is restored by restoring the full one and then each increment, in
order: they are a chain.

Increments stand in a folder beside their full checkpoint, so that whoever knows
nothing of them, such as TensorFlow, sees the full ones only:

    ckpt-10.index, ckpt-10.data-...
    ckpt-10.increments/ckpt-11.index, ckpt-10.increments/ckpt-11.data-...
"""

import dataclasses
import json
import posixpath
import re
from collections.abc import Mapping
from collections.abc import Sequence

# What an increment calls its own description, and the changed rows of a table.
DESCRIPTION_KEY = "_TFPS_INCREMENT"
_FOLDER = ".increments"
_CHANGE = re.compile(r"(.*)/\.TFPS_CHANGES/(\d+)-(\d+)/(\d+)/rows", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Link:
    """A checkpoint that an increment needs.

    Attributes:
        path: Its prefix, relative to the folder of the full one.
        checksum: Of its index: one that was written anew under the same name
            is another one.
    """

    path: str
    checksum: int


def folder_of_increments(full: str) -> str:
    """Where the increments of a full checkpoint stand."""
    return full + _FOLDER


def full_one_of(increment: str) -> str:
    """The full checkpoint beside which an increment stands."""
    return posixpath.dirname(increment).removesuffix(_FOLDER)


def number_of_full(folder: str, name: str) -> int | None:
    """The number of the full checkpoint whose increments a folder has.

    Args:
        folder: Name of the folder, such as "ckpt-10.increments".
        name: What the names of checkpoints begin with.

    Returns:
        None: it is no such folder.
    """
    match = re.fullmatch(
        rf"{re.escape(name)}-(\d+){re.escape(_FOLDER)}/?", folder
    )
    return int(match[1]) if match else None


def describe(links: Sequence[Link]) -> str:
    """The description of an increment.

    Args:
        links: What it needs, the full one first.
    """
    return json.dumps([dataclasses.asdict(link) for link in links])


def parse(description: str | bytes) -> list[Link]:
    """What an increment needs, the full one first."""
    return [Link(**each) for each in json.loads(description)]


@dataclasses.dataclass(frozen=True)
class Change:
    """Changed rows of a part of a table, in one increment.

    Attributes:
        key: What the checkpoint calls the table.
        first: Row of the table with which the part begins.
        end: Row behind the last one of the part.
        piece: Changed rows go in pieces, which are numbered.
    """

    key: str
    first: int
    end: int
    piece: int

    @property
    def rows_key(self) -> str:
        """What the increment calls the numbers of the rows, int64."""
        return f"{self._prefix}/rows"

    @property
    def values_key(self) -> str:
        """What it calls the rows themselves."""
        return f"{self._prefix}/values"

    @property
    def _prefix(self) -> str:
        part = f"{self.first}-{self.end}/{self.piece}"
        return f"{self.key}/.TFPS_CHANGES/{part}"

    def concerns(self, first: int, end: int) -> bool:
        """Whether it may have rows of a part of today."""
        return self.first < end and first < self.end


def changes_in(keys: Mapping[str, object]) -> dict[str, list[Change]]:
    """The changes that an increment has, by table.

    Args:
        keys: Those of the increment.
    """
    found: dict[str, list[Change]] = {}
    for name in sorted(keys):
        if match := _CHANGE.fullmatch(name):
            key, first, end, piece = match.groups()
            change = Change(key, int(first), int(end), int(piece))
            found.setdefault(key, []).append(change)
    return found


def to_delete(unwanted: Sequence[int], chains: Mapping[int, int]) -> list[int]:
    """The full checkpoints that can be deleted with all their increments.

    Args:
        unwanted: Numbers of checkpoints that need not be kept.
        chains: Of every checkpoint the number of its full one.

    Returns:
        Numbers of full checkpoints, oldest first.
    """
    wanted = {full for n, full in chains.items() if n not in set(unwanted)}
    return sorted(set(chains.values()) - wanted)
