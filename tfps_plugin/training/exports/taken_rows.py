"""Rows of a variable that have changed, copied where they are.

As incremental checkpoints do, parameter servers keep a fingerprint of each row
and compare it. Of a table without a vocabulary they also keep the ids that
rows belonged to.
"""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.checkpoints import parts as parts_module
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import change_files
from tfps_plugin.recovery.incremental.row_marks import Mark
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.dynamic.shard.shard_parts import ID
from tfps_plugin.variables.dynamic.shard.shard_parts import IS_USED

# Rows travel to the chief in blocks of about this size.
_BLOCK_BYTES = 16 << 20
_HERE = "/device:CPU:0"


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
        gone = [part.removed for part in self._parts]
        there = [part.keys for part in self._parts]
        # A row that is made again is another one.
        return np.setdiff1d(np.concatenate(gone), np.concatenate(there))

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


def take(
    variable: keras.Variable,
    records: keras.Variable | None,
    since: Memories,
) -> TakenRows:
    """Copies the rows that have changed; all if it cannot tell which.

    Args:
        variable: The rows; nothing may change them meanwhile.
        records: Ids of the rows; None if they go by their numbers.
        since: What is remembered of them.
    """
    value = keras_compat.value_of(variable)
    parts = parts_module.parts_of("", value)
    if not parts:
        return _take_here(value, keras_compat.value_of(records), since)
    for part in parts:
        # Serving processes have no optimizer that catches up.
        part.variable.finish_steps()
    is_whole = not _are_known(parts, since)
    record_parts: dict[int, Any] = {}
    if records is not None:
        found = parts_module.parts_of("", keras_compat.value_of(records))
        record_parts = {part.offset: part.variable for part in found}

    def gather(part: Part, rows: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.ResourceGather(
            resource=part.variable.own_handle,
            indices=rows,
            dtype=part.variable.dtype,
        )

    def take_own(device: str, own: Any) -> list[TakenPart]:
        taken = []
        for part in own:
            recorded = record_parts.get(part.offset)
            if recorded is not None:
                with tf.device(device):
                    recorded = tf.raw_ops.ReadVariableOp(
                        resource=recorded.own_handle, dtype=tf.int64
                    )
            taken.append(
                _taken(
                    device,
                    part.offset,
                    change_files.take_mark(device, part),
                    functools.partial(gather, part),
                    recorded,
                    None if is_whole else since[part.offset],
                )
            )
        return taken

    by_device = part_files.on_every_device(parts, take_own)
    every = [part for taken in by_device.values() for part in taken]
    every.sort(key=lambda part: part.offset)
    return TakenRows(every, is_whole=is_whole)


def _are_known(parts: list[Part], since: Memories) -> bool:
    """Returns whether there is a memory of each part as it is now."""
    if {part.offset for part in parts} != set(since):
        return False
    return all(
        since[part.offset].mark.handle is part.variable.own_handle
        and since[part.offset].mark.fingerprints.shape[0]
        == part.variable.shape[0]
        for part in parts
    )


def _take_here(variable: Any, records: Any, since: Memories) -> TakenRows:
    """Takes rows of a variable of this process."""
    with tf.device(_HERE):
        value = tf.convert_to_tensor(variable)
        fingerprints = tf.bitcast(
            tf.raw_ops.Fingerprint(data=value, method="farmhash64"), tf.int64
        )
        recorded = None if records is None else tf.convert_to_tensor(records)
    before = since.get(0)
    if before is not None and before.mark.handle is not variable.handle:
        before = None
    taken = _taken(
        _HERE,
        0,
        Mark(variable.handle, fingerprints),
        lambda rows: tf.gather(value, rows),
        recorded,
        before,
    )
    return TakenRows([taken], is_whole=before is None)


def _taken(
    device: str,
    offset: int,
    mark: Mark,
    gather: Callable[[tf.Tensor], tf.Tensor],
    recorded: tf.Tensor | None,
    before: Memory | None,
) -> TakenPart:
    """Takes the rows of a part.

    Args:
        device: Device of the part.
        offset: Number of its first row.
        mark: Fingerprints of its rows.
        gather: Returns rows of the part, there.
        recorded: Records of the rows, if it has them.
        before: What is remembered of the part; None to take all rows.
    """
    ids = are_used = None
    removed = np.zeros(0, np.int64)
    with tf.device(device):
        changed = (
            tf.ones_like(mark.fingerprints, tf.bool)
            if before is None
            else tf.not_equal(mark.fingerprints, before.mark.fingerprints)
        )
        if recorded is not None:
            ids, are_used = recorded[:, ID], recorded[:, IS_USED] > 0
            if before is not None:
                is_other = (ids != before.ids) | (are_used != before.are_used)
                gone = tf.boolean_mask(before.ids, before.are_used & is_other)
                changed |= is_other
                removed = chief_reads.to_array(gone)
            changed &= are_used
        numbers = tf.squeeze(tf.where(changed), 1)
        rows = gather(numbers)
        keys = numbers + offset if ids is None else tf.gather(ids, numbers)
    return TakenPart(
        device,
        chief_reads.to_array(keys),
        rows,
        removed,
        offset,
        Memory(mark, ids, are_used),
    )
