"""Copies of rows that have changed, made where the rows are.

As incremental checkpoints do, parameter servers keep a fingerprint of each row
and compare it. Of a table without a vocabulary they also keep the ids that
rows belonged to.

Copies are in the memory of parameter servers. Many rows of a table on disk are
copied there, as checkpoints do: the whole table, of which rows are then read in
blocks.
"""

import functools
from collections.abc import Callable
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
from tfps_plugin.training.exports.taken_rows import Memories
from tfps_plugin.training.exports.taken_rows import Memory
from tfps_plugin.training.exports.taken_rows import TakenPart
from tfps_plugin.training.exports.taken_rows import TakenRows
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard.shard_parts import ID
from tfps_plugin.variables.dynamic.shard.shard_parts import IS_USED
from tfps_plugin.variables.storage import on_disk

_HERE = "/device:CPU:0"

# Rows of a table on disk that a parameter server copies in its memory, at most.
_MOST_BYTES = 32 << 20

# Rows, and the place of each row that was asked for; None: in that order.
_Rows = tuple[tf.Tensor, tf.Tensor | None]


def take(
    variable: keras.Variable,
    records: keras.Variable | None,
    space: RowSpace | None,
    since: Memories,
) -> TakenRows:
    """Copies the rows that have changed; all if it cannot tell which.

    Rows that change meanwhile are those of before or after the change, and
    taken again the next time.

    Args:
        variable: The rows.
        records: Ids of the rows; None if they go by their numbers.
        space: Rows of all tables by id that are stacked; None: they are not.
        since: What is remembered of them.

    Raises:
        tf.errors.OpError: See `chief_reads.read`.
        ParameterServerLostError: See `chief_reads.read`.
    """
    value = keras_compat.value_of(variable)
    recorded = None if records is None else keras_compat.value_of(records)
    if not parts_module.parts_of("", value):
        return _take_here(value, recorded, space, since)

    def take_once() -> TakenRows:
        places = _places(value, recorded)
        try:
            taken = _take_parts(value, recorded, space, since)
        except tf.errors.OpError:
            _require_places(places, value, recorded)
            raise
        _require_places(places, value, recorded)
        return taken

    return chief_reads.read(take_once)


def _places(*variables: Any) -> list[tuple[Any, int]]:
    """Returns handle and first row of each part of variables."""
    return [
        (part.variable.own_handle, part.offset)
        for variable in variables
        for part in parts_module.parts_of("", variable)
    ]


def _require_places(places: list[tuple[Any, int]], *variables: Any) -> None:
    """Checks that variables are where they were.

    Raises:
        UnavailableError: If they are not: of what was read of them, some may
            be of before and some of after.
    """
    now = _places(*variables)
    if len(now) != len(places) or any(
        handle is not handle_now or row != row_now
        for (handle, row), (handle_now, row_now) in zip(
            places, now, strict=True
        )
    ):
        raise tf.errors.UnavailableError(
            None,
            None,
            "Variables have moved or were restored while an export read them. "
            f"Expected: no change. Received: {len(places)} parts before, "
            f"{len(now)} after. Export again.",
        )


def _take_parts(
    value: Any, records: Any, space: RowSpace | None, since: Memories
) -> TakenRows:
    parts = parts_module.parts_of("", value)
    for part in parts:
        # Serving processes have no optimizer that catches up.
        part.variable.finish_steps()
    is_whole = not _are_known(parts, since)
    record_parts: dict[int, Any] = {}
    if records is not None:
        found = parts_module.parts_of("", records)
        record_parts = {part.offset: part.variable for part in found}

    def read_records(recorded: Any) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(
            resource=recorded.own_handle, dtype=tf.int64
        )

    def take_own(device: str, own: Any) -> list[TakenPart]:
        taken = []
        for part in own:
            recorded = record_parts.get(part.offset)
            taken.append(
                _taken(
                    device,
                    part.offset,
                    functools.partial(change_files.take_mark, device, part),
                    functools.partial(_copy, part),
                    None
                    if recorded is None
                    else functools.partial(read_records, recorded),
                    space,
                    None if is_whole else since[part.offset],
                )
            )
        return taken

    by_device = part_files.on_every_device(parts, take_own)
    every = [part for taken in by_device.values() for part in taken]
    every.sort(key=lambda part: part.offset)
    return TakenRows(every, is_whole=is_whole)


def _copy(part: Part, numbers: tf.Tensor) -> _Rows:
    """Copies rows of a part on its ps, which is the current device."""
    variable = part.variable
    if (
        variable.on_disk is not None
        and int(numbers.shape[0]) * part.row_bytes > _MOST_BYTES
    ):
        # They may be more than there is memory for.
        return on_disk.copy(variable, variable.on_disk), numbers
    rows = tf.raw_ops.ResourceGather(
        resource=variable.own_handle, indices=numbers, dtype=variable.dtype
    )
    return rows, None


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


def _take_here(
    variable: Any, records: Any, space: RowSpace | None, since: Memories
) -> TakenRows:
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
        lambda: Mark(variable.handle, fingerprints),
        lambda numbers: (tf.gather(value, numbers), None),
        None if records is None else lambda: recorded,
        space,
        before,
    )
    return TakenRows([taken], is_whole=before is None)


def _taken(
    device: str,
    offset: int,
    take_mark: Callable[[], Mark],
    copy: Callable[[tf.Tensor], _Rows],
    read_records: Callable[[], tf.Tensor] | None,
    space: RowSpace | None,
    before: Memory | None,
) -> TakenPart:
    """Takes the rows of a part.

    Args:
        device: Device of the part.
        offset: Number of its first row.
        take_mark: Takes fingerprints of its rows.
        copy: Copies rows of the part, there.
        read_records: Reads the records of the rows, if it has them.
        space: Rows of all tables by id that are stacked; None: they are not.
        before: What is remembered of the part; None to take all rows.
    """
    ids = are_used = tables = None
    removed = tables_of_removed = np.zeros(0, np.int64)
    with tf.device(device):
        recorded = None if read_records is None else read_records()
        # Before the rows: what changes in between is taken the next time.
        mark = take_mark()
        changed = (
            tf.ones_like(mark.fingerprints, tf.bool)
            if before is None
            else tf.not_equal(mark.fingerprints, before.mark.fingerprints)
        )
        if recorded is not None:
            ids, are_used = _ids_of(recorded)
            if before is not None:
                is_other = (ids != before.ids) | (are_used != before.are_used)
                are_gone = before.are_used & is_other
                changed |= is_other
                removed = chief_reads.to_array(
                    tf.boolean_mask(before.ids, are_gone)
                )
                if space is not None:
                    tables_of_removed = space.tables_of(
                        chief_reads.to_array(tf.where(are_gone)[:, 0])
                    )
            changed &= are_used
        numbers = tf.squeeze(tf.where(changed), 1)
        if space is not None:
            # Those of a table together.
            local = chief_reads.to_array(numbers)
            tables = space.tables_of(local)
            order = np.argsort(tables, stable=True)
            tables, numbers = tables[order], tf.constant(local[order])
        rows, places = copy(numbers)
        if read_records is None:
            keys = numbers + offset
        else:
            ids_now, are_used_now = _ids_of(read_records())
            # A row that went to another id meanwhile is not that of its id.
            stays = (ids_now == ids) & are_used_now
            are_taken = tf.gather(stays, numbers)
            keys = tf.gather(ids, numbers)
            if not chief_reads.to_array(tf.reduce_all(are_taken)):
                keys = tf.boolean_mask(keys, are_taken)
                if places is None:
                    rows = tf.boolean_mask(rows, are_taken)
                else:
                    places = tf.boolean_mask(places, are_taken)
                if tables is not None:
                    tables = tables[chief_reads.to_array(are_taken)]
                mark = _forget(mark, stays)
    return TakenPart(
        device,
        chief_reads.to_array(keys),
        rows,
        places,
        removed,
        tables,
        None if space is None else tables_of_removed,
        offset,
        Memory(mark, ids, are_used),
    )


def _ids_of(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the id of each row, and whether the row belongs to it."""
    return records[:, ID], records[:, IS_USED] > 0


def _forget(mark: Mark, stays: tf.Tensor) -> Mark:
    """Returns a mark from which all rows differ but those that stay."""
    others = tf.bitwise.invert(mark.fingerprints)
    return Mark(mark.handle, tf.where(stays, mark.fingerprints, others))
