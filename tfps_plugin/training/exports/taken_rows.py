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
        removed: Ids that the part has no row of any more, or not there.
        offset: Number of the first row of the part.
        memory: What to remember of the part.
    """

    device: str
    keys: np.ndarray
    rows: tf.Tensor
    removed: np.ndarray
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

    def removed(self) -> np.ndarray:
        """Returns the ids that have no row any more."""
        gone = np.concatenate([part.removed for part in self._parts])
        there = np.concatenate([part.keys for part in self._parts])
        gone = id_sets.distinct(gone)
        # A row that is made again is another one.
        return gone[~id_sets.are_among(gone, id_sets.distinct(there))]

    def is_empty(self) -> bool:
        """Returns whether nothing has changed."""
        return not any(len(p.keys) + len(p.removed) for p in self._parts)

    def num_rows(self, rows: range | None) -> int:
        """Returns the number of taken rows in a range of row numbers.

        Args:
            rows: The range; None for all.
        """
        return sum(len(self._within(part, rows)) for part in self._parts)

    def blocks(
        self, rows: range | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Fetches taken rows, some at a time.

        Args:
            rows: The range of row numbers, which become the keys, counted from
                the first; None for all.

        Yields:
            Keys and rows.
        """
        first = 0 if rows is None else rows.start
        for part in self._parts:
            within = self._within(part, rows)
            row_bytes = int(part.rows.shape[1]) * part.rows.dtype.size
            step = max(1, _BLOCK_BYTES // row_bytes)
            for start in range(within.start, within.stop, step):
                stop = min(start + step, within.stop)
                yield part.keys[start:stop] - first, _fetch(part, start, stop)

    @staticmethod
    def _within(part: TakenPart, rows: range | None) -> range:
        if rows is None:
            return range(len(part.keys))
        start, stop = np.searchsorted(part.keys, [rows.start, rows.stop])
        return range(int(start), int(stop))


def _fetch(part: TakenPart, start: int, stop: int) -> np.ndarray:
    def read_once() -> np.ndarray:
        with tf.device(part.device):
            # Slicing whole rows does not copy them.
            block = part.rows[start:stop]
        return chief_reads.require_shape(block.numpy(), block.shape)

    # The slice too: its failure must not be left for what others do.
    return chief_reads.read(read_once)
