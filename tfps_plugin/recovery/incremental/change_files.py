"""Files of changed rows: writes them, and puts them back into their tables.

As in `part_files`, parameter servers write and read them if they see the
chief's files.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.checkpoints.parts import SLICE_BYTES
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.recovery.incremental.chain import Change
from tfps_plugin.recovery.incremental.row_marks import Mark
from tfps_plugin.recovery.incremental.row_marks import Marks
from tfps_plugin.variables.saving import saved_form
from tfps_plugin.variables.storage import on_disk

_CHIEF = "/device:CPU:0"
# Changed rows of a table on disk that a ps copies in its memory, at most.
_MOST_BYTES = 32 << 20


class _Changed(NamedTuple):
    """Changed rows of a part, on its ps.

    Attributes:
        part: The part.
        rows: Their numbers.
        values: The rows; or all rows of the part, in a copy on the disk.
        is_whole: Whether `values` has all rows.
    """

    part: Part
    rows: tf.Tensor
    values: tf.Tensor
    is_whole: bool


class ChangedRows:
    """Rows of tables that differ from a checkpoint, copied on their ps.

    Attributes:
        marks: Current marks of all rows, by key and first row of the part.
    """

    def __init__(self, parts: Sequence[Part], since: Marks) -> None:
        """Compares and copies, on all parameter servers at the same time.

        Args:
            parts: Parts of tables; nothing may change them meanwhile.
            since: Their marks in the checkpoint.
        """
        taken = part_files.on_every_device(
            parts,
            lambda device, own: [
                _take(device, part, since[part.key, part.offset])
                for part in own
            ],
        )
        self._parts = parts
        self._changed = {
            device: [changed for changed, _ in of_device]
            for device, of_device in taken.items()
        }
        self.marks: dict[tuple[str, int], Mark] = {
            (changed.part.key, changed.part.offset): mark
            for of_device in taken.values()
            for changed, mark in of_device
        }

    def write(self, prefix: str, *, by_ps: bool) -> list[str]:
        """Writes the rows to files; see `Snapshot.write`."""
        if not by_ps:
            return self._write_through_chief(prefix)
        numbered = {d: f"{prefix}-{i}" for i, d in enumerate(self._changed)}

        def write(device: str, parts: Sequence[Part]) -> list[str]:
            del parts
            prefixes: list[str] = []
            with tf.device(device):
                for entries in _files(self._changed[device]):
                    prefixes.append(f"{numbered[device]}-{len(prefixes)}")
                    tf.raw_ops.SaveV2(
                        prefix=prefixes[-1],
                        tensor_names=list(entries),
                        shape_and_slices=[""] * len(entries),
                        tensors=list(entries.values()),
                    )
            return prefixes

        written = part_files.on_every_device(self._parts, write)
        return [each for prefixes in written.values() for each in prefixes]

    def _write_through_chief(self, prefix: str) -> list[str]:
        prefixes: list[str] = []
        for of_device in self._changed.values():
            for changed in of_device:
                for change, rows, values in _pieces(changed):
                    with tf.device(_CHIEF):
                        entries = [
                            (change.rows_key, "", tf.identity(rows)),
                            (change.values_key, "", tf.identity(values)),
                        ]
                    prefixes.append(
                        part_files.save_here(prefix, len(prefixes), entries)
                    )
        return prefixes


def take_mark(device: str, part: Part) -> Mark:
    """Returns the mark of all rows of a part."""
    with tf.device(device):
        return row_marks.join(
            [
                row_marks.take(
                    part, _gather(part, tf.range(rows.start, rows.stop))
                )
                for rows in saved_form.pieces(part.variable, SLICE_BYTES)
            ]
        )


def changed_rows(
    device: str, part: Part, since: Mark
) -> tuple[tf.Tensor, Mark]:
    """Compares the rows of a part with earlier ones.

    Args:
        device: Device of the part.
        part: A part of a table.
        since: The earlier mark to compare with.

    Returns:
        The numbers of changed rows within the part, int64 of shape `(N,)`, on
        the device; and the current mark.
    """
    mark = take_mark(device, part)
    with tf.device(device):
        return row_marks.changed(mark, since), mark


def _take(device: str, part: Part, since: Mark) -> tuple[_Changed, Mark]:
    """Copies the rows of a part that have changed, on its ps."""
    rows, mark = changed_rows(device, part, since)
    variable = part.variable
    if (
        variable.on_disk is not None
        and int(rows.shape[0]) * part.row_bytes > _MOST_BYTES
    ):
        # They may be more than there is memory for.
        values = on_disk.copy(variable, variable.on_disk)
        return _Changed(part, rows, values, is_whole=True), mark
    with tf.device(device):
        values = _gather(part, rows)
    return _Changed(part, rows, values, is_whole=False), mark


def _gather(part: Part, rows: tf.Tensor) -> tf.Tensor:
    # Reading the variable would copy the whole part.
    return tf.raw_ops.ResourceGather(
        resource=part.variable.own_handle,
        indices=rows,
        dtype=part.variable.dtype,
    )


def _files(every: Sequence[_Changed]) -> Iterator[dict[str, tf.Tensor]]:
    """Yields the entries of each file of a parameter server, there."""
    entries: dict[str, tf.Tensor] = {}
    for changed in every:
        for change, rows, values in _pieces(changed):
            entries[change.rows_key] = rows
            entries[change.values_key] = values
            if changed.is_whole:
                # One piece at a time: the others are still on the disk.
                yield entries
                entries = {}
    if entries:
        yield entries


def _pieces(
    changed: _Changed,
) -> Iterator[tuple[Change, tf.Tensor, tf.Tensor]]:
    """Yields pieces on their ps, with the row numbers of the table."""
    part, every_row = changed.part, changed.rows
    end = part.offset + int(part.variable.shape[0])
    step = max(1, SLICE_BYTES // part.row_bytes)
    for number, start in enumerate(range(0, int(every_row.shape[0]), step)):
        with tf.device(part.variable.device):
            rows = every_row[start : start + step]
            values = (
                tf.gather(changed.values, rows)
                if changed.is_whole
                else changed.values[start : start + step]
            )
            numbers = rows + part.offset
        yield Change(part.key, part.offset, end, number), numbers, values


def replay(
    parts: Sequence[Part],
    prefix: str,
    changes: Mapping[str, Sequence[Change]],
    *,
    by_ps: bool,
) -> None:
    """Writes the rows of an increment into parts.

    Args:
        parts: The parts, with the values of the checkpoint before.
        prefix: Prefix of the increment.
        changes: Its changes, from `chain.changes_in`.
        by_ps: Whether each ps reads the files itself; if not, the chief does.

    Raises:
        tf.errors.OpError: If a file cannot be read.
    """

    def replay_all(device: str, own: Sequence[Part]) -> None:
        for part in own:
            end = part.offset + int(part.variable.shape[0])
            for change in changes.get(part.key, ()):
                if change.concerns(part.offset, end):
                    reader = device if by_ps else _CHIEF
                    _replay(device, part, change, prefix, reader)

    part_files.on_every_device(parts, replay_all)


def _replay(
    device: str, part: Part, change: Change, prefix: str, reader: str
) -> None:
    variable: Any = part.variable
    with tf.device(reader):
        rows, values = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=[change.rows_key, change.values_key],
            shape_and_slices=["", ""],
            dtypes=[tf.int64, variable.dtype],
        )
        rows -= part.offset
        num_rows = int(variable.shape[0])
        own = tf.squeeze(tf.where((rows >= 0) & (rows < num_rows)), 1)
        rows, values = tf.gather(rows, own), tf.gather(values, own)
    with tf.device(device):
        tf.raw_ops.ResourceScatterUpdate(
            resource=variable.own_handle,
            indices=tf.identity(rows),
            updates=tf.identity(values),
        )
