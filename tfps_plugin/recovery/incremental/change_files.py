"""Files of changed rows: writes them, and puts them back into their tables.

As in `part_files`, parameter servers write and read them if they see the
chief's files.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.checkpoints.parts import SLICE_BYTES
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.recovery.incremental.chain import Change
from tfps_plugin.recovery.incremental.row_marks import Mark
from tfps_plugin.recovery.incremental.row_marks import Marks
from tfps_plugin.variables.saving import saved_form

_CHIEF = "/device:CPU:0"

# A part, the numbers of its changed rows, and those rows; both on its ps.
_Changed = tuple[Part, tf.Tensor, tf.Tensor]


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
                (
                    part,
                    *take_changes(device, part, since[part.key, part.offset]),
                )
                for part in own
            ],
        )
        self._parts = parts
        self._changed = {
            device: [
                (part, rows, values) for part, rows, values, _ in of_device
            ]
            for device, of_device in taken.items()
        }
        self.marks: dict[tuple[str, int], Mark] = {
            (part.key, part.offset): mark
            for of_device in taken.values()
            for part, _, _, mark in of_device
        }

    def write(self, prefix: str, *, by_ps: bool) -> list[str]:
        """Writes the rows to files; see `Snapshot.write`."""
        if not by_ps:
            return self._write_through_chief(prefix)
        numbered = {d: f"{prefix}-{i}" for i, d in enumerate(self._changed)}

        def write(device: str, parts: Sequence[Part]) -> list[str]:
            del parts
            entries: dict[str, tf.Tensor] = {}
            with tf.device(device):
                for changed in self._changed[device]:
                    for change, rows, values in _pieces(changed):
                        entries[change.rows_key] = rows
                        entries[change.values_key] = values
                if not entries:
                    return []
                tf.raw_ops.SaveV2(
                    prefix=numbered[device],
                    tensor_names=list(entries),
                    shape_and_slices=[""] * len(entries),
                    tensors=list(entries.values()),
                )
            return [numbered[device]]

        written = part_files.on_every_device(self._parts, write)
        return [each for prefixes in written.values() for each in prefixes]

    def _write_through_chief(self, prefix: str) -> list[str]:
        prefixes: list[str] = []
        for device, of_device in self._changed.items():
            for changed in of_device:
                with tf.device(device):
                    pieces = _pieces(changed)
                for change, rows, values in pieces:
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


def take_changes(
    device: str, part: Part, since: Mark
) -> tuple[tf.Tensor, tf.Tensor, Mark]:
    """Copies the rows of a part that have changed, on its ps.

    Args:
        device: Device of the part.
        part: A part of a table.
        since: The earlier mark to compare with.

    Returns:
        The row numbers within the part, int64 of shape `(N,)`; the rows, of
        shape `(N, ...)`; and the current mark.
    """
    mark = take_mark(device, part)
    with tf.device(device):
        rows = row_marks.changed(mark, since)
        return rows, _gather(part, rows), mark


def _gather(part: Part, rows: tf.Tensor) -> tf.Tensor:
    # Reading the variable would copy the whole part.
    return tf.raw_ops.ResourceGather(
        resource=part.variable.own_handle,
        indices=rows,
        dtype=part.variable.dtype,
    )


def _pieces(changed: _Changed) -> list[tuple[Change, tf.Tensor, tf.Tensor]]:
    """Cuts changed rows into pieces, with their numbers in the table."""
    part, rows, values = changed
    end = part.offset + int(part.variable.shape[0])
    row_bytes = part.row_bytes
    step = max(1, SLICE_BYTES // row_bytes)
    return [
        (
            Change(part.key, part.offset, end, number),
            rows[start : start + step] + part.offset,
            values[start : start + step],
        )
        for number, start in enumerate(range(0, int(rows.shape[0]), step))
    ]


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
