"""Snapshot: the values of one checkpoint, from taking until writing them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.recovery.checkpoints import committing
from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import change_files
from tfps_plugin.recovery.incremental import increments
from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.recovery.incremental.row_marks import Mark
from tfps_plugin.recovery.incremental.row_marks import Marks


class Snapshot:
    """Values of parts: changed rows of tables, and everything else whole.

    Parameter servers hold it beside their variables until it is written.
    """

    def __init__(self, parts: Sequence[Part], since: Marks) -> None:
        """Copies the values, on all parameter servers at the same time.

        Args:
            parts: The parts to copy; nothing may change them meanwhile.
            since: The marks of the tables in the previous checkpoint. Tables
                without marks are copied whole.
        """
        known = row_marks.known_tables(parts, since)
        self._whole = [part for part in parts if part.key not in known]
        self._values = part_files.read(self._whole)
        self._changed = change_files.ChangedRows(
            [part for part in parts if part.key in known], since
        )

    def marks(self) -> Marks:
        """Returns the marks of all tables, for the next increment."""

        def mark(device: str, parts: Sequence[Part]) -> dict[Any, Mark]:
            values = dict(self._values[device])
            with tf.device(device):
                return {
                    (part.key, part.offset): row_marks.take(part, values[part])
                    for part in parts
                }

        tables = [part for part in self._whole if row_marks.is_table(part)]
        marks = dict(self._changed.marks)
        for whole in part_files.on_every_device(tables, mark).values():
            marks |= whole
        return marks

    def write(self, prefix: str, *, by_ps: bool) -> list[str]:
        """Writes the values to files.

        Args:
            prefix: First part of the names of the files.
            by_ps: Whether each ps writes its own values; if not, the chief
                writes all.

        Returns:
            The prefixes of the written files, to be merged.
        """
        return [
            *part_files.write(self._values, f"{prefix}-whole", by_ps=by_ps),
            *self._changed.write(f"{prefix}-changed", by_ps=by_ps),
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class Written:
    """A checkpoint that an increment may follow.

    Attributes:
        prefixes: The checkpoints that restore it, the full one first and
            itself last.
        marks: The marks of its tables.
    """

    prefixes: list[str]
    marks: Marks


@dataclasses.dataclass(frozen=True, eq=False)
class PendingWrite:
    """A checkpoint whose values are taken, but not yet written.

    Threading: `write` once, on any thread.

    Attributes:
        prefix: Prefix of the checkpoint.
        parts: The parts that parameter servers hold of it.
        unfinished: Prefix to write to until the checkpoint is complete, from
            `committing.begin`.
        own: Prefix of the file with everything that no ps holds.
        snapshot: The values of the parts.
        follows: The checkpoint before, of an increment; None for a full one.
        by_ps: Whether each ps writes its own values.
        marks_rows: Whether an increment may follow.
    """

    prefix: str
    parts: list[Part]
    unfinished: str
    own: str
    snapshot: Snapshot
    follows: Written | None
    by_ps: bool
    marks_rows: bool

    def write(self) -> Written:
        """Writes the checkpoint, which exists when this returns.

        Returns:
            The checkpoint, for an increment that follows it.

        Raises:
            tf.errors.OpError: If it cannot be written, for instance because
                the disk is full. Then no checkpoint was added or changed.
        """
        needs = self.follows.prefixes if self.follows is not None else []
        path = self.unfinished
        try:
            files = [self.own]
            files += self.snapshot.write(f"{path}-ps", by_ps=self.by_ps)
            if needs:
                files.append(
                    increments.write_description(f"{path}-needs", needs)
                )
            marks = self.snapshot.marks() if self.marks_rows else {}
            committing.commit(path, files, self.prefix)
            return Written([*needs, self.prefix], marks)
        except BaseException:
            committing.discard(self.unfinished)
            raise
