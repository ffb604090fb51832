"""Copies of a shard of a table without a vocabulary: ids with their own rows.

The records tell to which id each row belongs, and steps make and evict rows
while they are copied. Copied one after the other, the records of one moment
would give an id the row of another id, or slots of another moment. So:

- An id is only ever copied with the row that it had at one moment, that of the
  records' fingerprints, which are taken first. No id has two rows then, however
  the copying ends.
- A row travels with its slots and its record, read together under the lock
  under which steps make, evict and update rows. It is copied if it belongs to
  the id of that one moment; otherwise it is left for the next update.
- A row that belongs to another id than in the copy belongs to nobody in the
  copy, and has the slots of a new row, until it is copied.

An id that was made later is unknown to the copy, and begins anew after a
restore.

Shape legend: R rows of the shard, N rows to look at, M rows that are copied.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.recovery import transfers
from tfps_plugin.recovery import variable_copy
from tfps_plugin.recovery.checkpoints.parts import SLICE_BYTES
from tfps_plugin.recovery.directory_shard import DirectoryShard
from tfps_plugin.recovery.incremental import change_files
from tfps_plugin.recovery.incremental.row_marks import Mark
from tfps_plugin.recovery.locked_reads import LockedReads
from tfps_plugin.recovery.locked_reads import Taken
from tfps_plugin.recovery.variable_copy import VariableCopy
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard.shard_parts import NUM_COLUMNS
from tfps_plugin.variables.storage import allocation

_CHIEF = "/device:CPU:0"
# Place of the records among the members. They are written last.
_RECORDS = -1


class DirectoryCopy:
    """Copies of the members of one shard."""

    def __init__(
        self, shard: DirectoryShard, copies: Mapping[int, VariableCopy]
    ) -> None:
        """Takes the copies.

        Args:
            shard: The shard.
            copies: The copy of each member, by the `id` of the member.

        Raises:
            tf.errors.AbortedError: If a member has none, because it was made a
                moment ago.
        """
        if any(id(each) not in copies for each in shard.members):
            raise tf.errors.AbortedError(
                None, None, f"A slot of {shard.rows.path} is being made."
            )
        self._shard = shard
        self._copies = [copies[id(each)] for each in shard.members]
        self._slots = [copies[id(each)] for each in shard.slots]
        self._parts = [variable_copy.part_of(each) for each in shard.members]

    def update(self, handles: Mapping[int, Any], reads: LockedReads) -> None:
        """Copies what has changed since the last update.

        Args:
            handles: Handle of each member, by the `id` of the member.
            reads: Functions that read.

        Raises:
            tf.errors.OpError: If a ps does not answer, or was replaced.
        """
        own = [handles[id(each)] for each in self._shard.members]
        if all(
            copy.is_of(handle)
            for copy, handle in zip(self._copies, own, strict=True)
        ):
            marks = self._copy_changed(own, reads)
        else:
            marks = self._copy_all(own, reads)
        for copy, handle, mark in zip(self._copies, own, marks, strict=True):
            copy.mark, copy.handle = Mark(handle, mark), handle

    def restore(self) -> None:
        """Assigns the copies to the members, which were made again.

        Raises:
            tf.errors.OpError: If a ps does not answer.
        """
        shard = self._shard
        for copy, member in zip(self._copies, shard.members, strict=True):
            transfers.copy_rows(copy.mirror, member)
        for copy, part in zip(self._copies, self._parts, strict=True):
            copy.mark = change_files.take_mark(shard.device, part)
            copy.handle = part.variable.own_handle

    def _copy_all(
        self, handles: Sequence[Any], reads: LockedReads
    ) -> list[tf.Tensor]:
        """Makes the copies anew; returns the fingerprints of all rows."""
        since_R = self._records_now(handles, reads)
        for copy in self._copies:
            copy.begin()
        for copy in self._copies:
            # No id is known before its row is copied.
            allocation.allocate(copy.mirror)
        with tf.device(self._shard.device):
            rows_R = tf.range(self._shard.rows.shape[0], dtype=tf.int64)
        taken = list(self._take(rows_R, since_R, handles, reads))
        for each in taken:
            # The values that slots begin with were not there before.
            self._clear(each.left_out)
        return self._joined([each.marks for each in taken])

    def _copy_changed(
        self, handles: Sequence[Any], reads: LockedReads
    ) -> list[tf.Tensor]:
        """Copies rows that have changed; returns fingerprints of all rows."""
        before = [copy.mark.fingerprints for copy in self._copies if copy.mark]
        since_R = self._records_now(handles, reads)
        now = [
            change_files.take_mark(self._shard.device, part).fingerprints
            for part in self._parts[:_RECORDS]
        ]
        with tf.device(self._shard.device):
            are_others_R = tf.not_equal(since_R, before[_RECORDS])
            differ_R = are_others_R
            for each, earlier in zip(now, before, strict=False):
                differ_R |= tf.not_equal(each, earlier)
            rows_N = tf.where(differ_R)[:, 0]
            others_M = tf.where(are_others_R)[:, 0]
        self._require_same(handles)
        # After a failure halfway, it is unknown which rows were copied.
        for copy in self._copies:
            copy.mark = None
        # First of all: an id may have another row now, which comes before.
        self._clear(others_M)
        taken = list(self._take(rows_N, since_R, handles, reads))
        if not taken:
            return before
        marks = self._joined([each.marks for each in taken])
        with tf.device(self._shard.device):
            return [
                tf.tensor_scatter_nd_update(earlier, rows_N[:, None], each)
                for earlier, each in zip(before, marks, strict=True)
            ]

    def _records_now(
        self, handles: Sequence[Any], reads: LockedReads
    ) -> tf.Tensor:
        """Returns the fingerprints of the records of one moment."""
        since_R = reads.fingerprints(self._shard)
        self._require_same(handles)
        return since_R

    def _take(
        self,
        rows_N: tf.Tensor,
        since_R: tf.Tensor,
        handles: Sequence[Any],
        reads: LockedReads,
    ) -> Iterator[Taken]:
        """Copies rows slice by slice, each of one moment, and yields them."""
        step = max(
            1, SLICE_BYTES // sum(part.row_bytes for part in self._parts)
        )
        for first in range(0, int(rows_N.shape[0]), step):
            with tf.device(self._shard.device):
                numbers = rows_N[first : first + step]
            taken = reads.take(self._shard, numbers, since_R)
            with tf.device(_CHIEF):
                # All of them, before the first one is written: the parameter
                # server may be lost in between.
                rows_M = tf.identity(taken.rows_M)
                values = [tf.identity(each) for each in taken.values]
            self._require_same(handles)
            self._write(rows_M, values)
            yield taken._replace(values=[])

    def _write(self, rows_M: tf.Tensor, values: Sequence[tf.Tensor]) -> None:
        try:
            for copy, each in zip(self._copies, values, strict=True):
                transfers.scatter(copy.mirror, rows_M, each)
        except BaseException:
            self._forget()
            raise

    def _clear(self, rows_M: tf.Tensor) -> None:
        """Takes their ids from rows of the copy; their slots begin anew."""
        with tf.device(_CHIEF):
            rows_M = tf.identity(rows_M)
        if not rows_M.shape[0]:
            return
        records = self._copies[_RECORDS].mirror
        try:
            with tf.device(records.device):
                rows_M = tf.identity(rows_M)
                tf.raw_ops.ResourceScatterUpdate(
                    resource=records.own_handle,
                    indices=rows_M,
                    updates=tf.zeros([rows_M.shape[0], NUM_COLUMNS], tf.int64),
                )
                first_M = rows_M - rows_M % self._shard.space.rows_per_bucket
                for slot in self._slots:
                    new_MD = tf.raw_ops.ResourceGather(
                        resource=slot.mirror.own_handle,
                        indices=first_M + RowSpace.PRISTINE,
                        dtype=slot.mirror.dtype,
                    )
                    tf.raw_ops.ResourceScatterUpdate(
                        resource=slot.mirror.own_handle,
                        indices=rows_M,
                        updates=new_MD,
                    )
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        """Makes the copies useless: a row may be half written."""
        for copy in self._copies:
            copy.handle = None

    def _joined(self, marks: Sequence[list[tf.Tensor]]) -> list[tf.Tensor]:
        """Joins the fingerprints of slices, for each member."""
        with tf.device(self._shard.device):
            return [tf.concat(each, 0) for each in zip(*marks, strict=True)]

    def _require_same(self, handles: Sequence[Any]) -> None:
        for part, handle in zip(self._parts, handles, strict=True):
            variable_copy.require_same(part, handle)
