"""Rows of a variable as they were at one moment, on the parameter servers."""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tfps_plugin.exports import id_sets
from tfps_plugin.recovery.incremental.row_marks import Mark
from tfps_plugin.variables.chief import chief_reads

# Rows travel to the chief in blocks of about this size.
_BLOCK_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Memory:
    """All that is remembered of the rows of one part.

    Attributes:
        mark: Fingerprints of the rows.
        ids: The id of each row; None for a table that goes by row numbers.
        are_used: Whether the row belongs to an id; None likewise.
    """

    mark: Mark
    ids: tf.Tensor | None
    are_used: tf.Tensor | None


# What is remembered of each part of a variable, by its first row.
Memories = Mapping[int, Memory]


@dataclasses.dataclass(frozen=True, eq=False)
class TakenPart:
    """Rows of one part of a variable.

    Attributes:
        device: Where the rows are.
        keys: Ids of the rows, or their numbers in the variable, ascending.
        rows: The rows, on the device.
        places: Where the row of each key is in `rows`, on the device; None:
            in the order of keys.
        removed: Ids that the part has no row of any more, or not there.
        tables: For tables by id that are stacked, the number of the table of
            each key, ascending; None: there is one table, or they have ranges
            of row numbers.
        tables_of_removed: The same of the ids that are removed.
        offset: Number of the first row of the part.
        memory: What to remember of the part.
    """

    device: str
    keys: np.ndarray
    rows: tf.Tensor
    places: tf.Tensor | None
    removed: np.ndarray
    tables: np.ndarray | None
    tables_of_removed: np.ndarray | None
    offset: int
    memory: Memory


class TakenRows:
    """Rows of one variable, as they were at one moment.

    Attributes:
        is_whole: Whether these are all rows, changed or not.
        memories: What to remember, to compare with the next time.
    """

    def __init__(self, parts: list[TakenPart], *, is_whole: bool) -> None:
        """Keeps what `take` has taken.

        Args:
            parts: All parts of the variable.
            is_whole: Whether these are all rows.
        """
        self.is_whole = is_whole
        self.memories: Memories = {part.offset: part.memory for part in parts}
        self._parts = parts

    def removed(self, table: int | None = None) -> np.ndarray:
        """Returns the ids that have no row any more.

        Args:
            table: The number of a table by id that is stacked; None: not.
        """
        gone = np.concatenate([_removed(part, table) for part in self._parts])
        there = np.concatenate(
            [
                part.keys[within.start : within.stop]
                for part in self._parts
                for within in [self._within(part, None, table)]
            ]
        )
        gone = id_sets.distinct(gone)
        # A row that is made again is another one.
        return gone[~id_sets.are_among(gone, id_sets.distinct(there))]

    def is_empty(self) -> bool:
        """Returns whether nothing has changed."""
        return not any(len(p.keys) + len(p.removed) for p in self._parts)

    def num_rows(self, rows: range | None, table: int | None = None) -> int:
        """Returns the number of taken rows of a table.

        Args:
            rows: Its range of row numbers; None for all.
            table: The number of a table by id that is stacked; None: not.
        """
        return sum(len(self._within(part, rows, table)) for part in self._parts)

    def blocks(
        self, rows: range | None, table: int | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Fetches taken rows, some at a time.

        Args:
            rows: The range of row numbers, which become the keys, counted from
                the first; None for all.
            table: The number of a table by id that is stacked; None: not.

        Yields:
            Keys and rows.
        """
        first = 0 if rows is None else rows.start
        for part in self._parts:
            within = self._within(part, rows, table)
            row_bytes = int(part.rows.shape[1]) * part.rows.dtype.size
            step = max(1, _BLOCK_BYTES // row_bytes)
            for start in range(within.start, within.stop, step):
                stop = min(start + step, within.stop)
                yield part.keys[start:stop] - first, _fetch(part, start, stop)

    @staticmethod
    def _within(
        part: TakenPart, rows: range | None, table: int | None
    ) -> range:
        if table is not None and part.tables is not None:
            start, stop = np.searchsorted(part.tables, [table, table + 1])
            return range(int(start), int(stop))
        if rows is None:
            return range(len(part.keys))
        start, stop = np.searchsorted(part.keys, [rows.start, rows.stop])
        return range(int(start), int(stop))


def _removed(part: TakenPart, table: int | None) -> np.ndarray:
    if table is None:
        return part.removed
    return part.removed[part.tables_of_removed == table]


def _fetch(part: TakenPart, start: int, stop: int) -> np.ndarray:
    def read_once() -> np.ndarray:
        with tf.device(part.device):
            if part.places is None:
                # Slicing whole rows does not copy them.
                block = part.rows[start:stop]
            else:
                block = tf.gather(part.rows, part.places[start:stop])
        return chief_reads.require_shape(block.numpy(), block.shape)

    # The slice too: its failure must not be left for what others do.
    return chief_reads.read(read_once)
