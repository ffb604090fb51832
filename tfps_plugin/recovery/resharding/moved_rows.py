"""Rows of one shard or variable on their way to other parameter servers.

They are copied slice by slice while others change them. Fingerprints of the
rows (`row_marks`) show which have changed since they were copied; these are
copied again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.recovery import transfers
from tfps_plugin.recovery.checkpoints.parts import SLICE_BYTES
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.recovery.incremental.row_marks import Mark
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.saving import saved_form
from tfps_plugin.variables.storage import allocation

_CHIEF = "/device:CPU:0"
# Larger values travel in slices in any case.
_MOST_BYTES_AT_ONCE = 4 * SLICE_BYTES


class Piece(NamedTuple):
    """Some rows of a shard, and their new place.

    Attributes:
        rows: The rows, counted from the first of the shard.
        target: The variable that gets them.
        first_row: The row of `target` that gets the first of them.
    """

    rows: range
    target: RemoteVariable
    first_row: int


class MovedRows:
    """Copies the rows of one shard, or of a variable that is not sharded.

    Attributes:
        part: The shard, as a part of a checkpoint.

    Threading: one thread at a time.
    """

    def __init__(
        self,
        source: RemoteVariable,
        pieces: Sequence[Piece],
        *,
        is_looked_up: bool,
    ) -> None:
        """Prepares; copies nothing yet.

        Args:
            source: The shard or variable.
            pieces: What goes where; rows without a piece stay behind.
            is_looked_up: Whether steps read and update single rows of it. A
                step that reads the whole value would copy it each time if it
                had been written row by row.
        """
        self._source = source
        self._pieces = [
            piece for piece in pieces if len(piece.rows) or _fills(piece)
        ]
        shape = tuple(source.shape.as_list())
        self.part = Part(source.path, source, 0, shape)
        self._by_rows = row_marks.is_table(self.part) and (
            is_looked_up
            or initialization.num_bytes(source.shape, source.dtype)
            > _MOST_BYTES_AT_ONCE
        )
        # A mark of each slice; empty: nothing was copied.
        self._marks: list[Mark] = []

    @property
    def device(self) -> str:
        """Device of the parameter server that has the rows now."""
        return self._source.device

    def allocate(self) -> None:
        """Gives the targets memory; before any rows are copied to them."""
        for piece in self._pieces:
            if self._by_rows or not _fills(piece):
                _allocate(piece.target)

    def copy(self) -> None:
        """Copies the rows of a table; other variables are copied in the end.

        Raises:
            tf.errors.OpError: If a parameter server is lost.
        """
        if self._by_rows:
            self._marks = [
                self._copy_slice(rows, None)[0] for rows in self._slices()
            ]

    def copy_changed(self) -> int:
        """Copies the rows that have changed since they were copied.

        Returns:
            Number of bytes that were copied.

        Raises:
            tf.errors.OpError: If a parameter server is lost.
        """
        if not self._marks:
            return 0
        copied = [
            self._copy_slice(rows, mark)
            for rows, mark in zip(self._slices(), self._marks, strict=True)
        ]
        self._marks = [mark for mark, _ in copied]
        return sum(num_rows for _, num_rows in copied) * self.part.row_bytes

    def complete(self) -> None:
        """Copies everything that is not copied as it is now.

        Raises:
            tf.errors.OpError: If a parameter server is lost.
        """
        if not self._by_rows:
            self._copy_whole()
        elif self._marks:
            self.copy_changed()
        else:
            self.copy()

    def _slices(self) -> list[range]:
        return list(saved_form.pieces(self._source, SLICE_BYTES))

    def _copy_slice(self, rows: range, since: Mark | None) -> tuple[Mark, int]:
        """Copies some consecutive rows, or those of them that have changed.

        Args:
            rows: The rows.
            since: Their mark when they were copied; None: they were not.

        Returns:
            Their mark now, and the number of rows that were copied.
        """
        with tf.device(self.device):
            numbers = tf.range(rows.start, rows.stop, dtype=tf.int64)
            # Reading the variable would copy the whole table.
            values = tf.raw_ops.ResourceGather(
                resource=self._source.own_handle,
                indices=numbers,
                dtype=self._source.dtype,
            )
            mark = row_marks.take(self.part, values)
            if since is not None:
                changed = row_marks.changed(mark, since)
                numbers = tf.gather(numbers, changed)
                values = tf.gather(values, changed)
        num_rows = int(numbers.shape[0])
        if num_rows:
            for piece in self._pieces:
                self._send(piece, rows, numbers, values, since is None)
        return mark, num_rows

    def _send(
        self,
        piece: Piece,
        rows: range,
        numbers: tf.Tensor,
        values: tf.Tensor,
        are_all: bool,
    ) -> None:
        """Sends those of some rows that belong to a piece.

        Args:
            piece: The piece.
            rows: The range that the rows are from.
            numbers: Their numbers, ascending.
            values: The rows.
            are_all: Whether they are all rows of the range.
        """
        first = max(rows.start, piece.rows.start)
        last = min(rows.stop, piece.rows.stop)
        if first >= last:
            return
        with tf.device(self.device):
            if are_all:
                own = slice(first - rows.start, last - rows.start)
                numbers, values = numbers[own], values[own]
            else:
                own = tf.squeeze(
                    tf.where((numbers >= first) & (numbers < last)), 1
                )
                numbers = tf.gather(numbers, own)
                values = tf.gather(values, own)
            numbers = numbers - piece.rows.start + piece.first_row
        if piece.target.device != self.device:
            # Parameter servers do not connect to each other.
            transfers.scatter(piece.target, numbers, values)
            return
        with tf.device(self.device):
            tf.raw_ops.ResourceScatterUpdate(
                resource=piece.target.own_handle,
                indices=numbers,
                updates=values,
            )

    def _copy_whole(self) -> None:
        """Copies a variable that is too small for rows, or has none."""
        value = transfers.read(self._source)
        for rows, target, first in self._pieces:
            with tf.device(_CHIEF):
                is_cut = self._source.shape.rank and len(rows) < value.shape[0]
                part = value[rows.start : rows.stop] if is_cut else value
                numbers = tf.range(first, first + len(rows))
            if _fills(Piece(rows, target, first)):
                transfers.assign(target, part)
            else:
                transfers.scatter(target, numbers, part)


def _fills(piece: Piece) -> bool:
    """Returns whether a piece is all that its target gets."""
    shape = piece.target.shape
    return not shape.rank or len(piece.rows) == shape[0]


def _allocate(target: RemoteVariable) -> None:
    """Gives a variable a value, unless it has one."""
    with tf.device(target.device):
        if not tf.raw_ops.VarIsInitializedOp(resource=target.own_handle):
            allocation.allocate(target)
