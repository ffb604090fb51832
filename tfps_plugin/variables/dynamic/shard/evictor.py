"""Selects rows that lose their ids, on the device of the code that uses it.

Shape legend: S cells, C rows of a cell, M rows, T tables.
"""

from collections.abc import Callable

import tensorflow as tf

from tfps_plugin.variables.dynamic.cells import Cells
from tfps_plugin.variables.dynamic.policies import LEAST_FREQUENT
from tfps_plugin.variables.dynamic.policies import SMALLEST_NORM
from tfps_plugin.variables.dynamic.policies import Eviction
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import shard_parts
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts

# Share of a cell that goes when the cell is full.
SHARE = 0.1
# Rows that steps have just looked up may get gradients yet: as many lookups as
# may be on their way, or as much time as one takes. Each, times the steps whose
# gradients are applied together.
PROTECTED_LOOKUPS = 64
_PROTECTED_MICROSECONDS = 10_000_000
_MICROSECONDS = 1_000_000


class Evictor:
    """Rule of eviction, as operations on the variables of a shard."""

    def __init__(
        self,
        eviction: Eviction,
        parts: ShardParts,
        cells: Cells,
        seconds: Callable[[], tf.Tensor],
        steps_per_update: int,
    ) -> None:
        """Takes the rule and the variables, which have a usage.

        Args:
            eviction: The rule.
            parts: The variables.
            cells: The cells of the shard.
            seconds: Returns the time of the task, float64.
            steps_per_update: As in `Rules`.
        """
        self._steps_per_update = steps_per_update
        self._eviction = eviction
        self._parts = parts
        self._cells = cells
        self._seconds = seconds

    @property
    def _counts_seconds(self) -> bool:
        """True if rows are old by the time, and not by lookups."""
        return self._eviction.unseen_seconds is not None

    def now(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns the present time of the rows of each table, int64, `(T,)`.

        Args:
            numbers: The tallies.
        """
        if not self._counts_seconds:
            return numbers[tallies.CLOCK]
        return self._microseconds() - numbers[tallies.EPOCH]

    def going_on(self) -> dict[int, tf.Tensor]:
        """Returns tallies by which time goes on where a row was last seen.

        So the time does not count in which nobody had the table, such as that
        between a checkpoint and its restore.
        """
        usage = tf.raw_ops.ReadVariableOp(
            resource=self._parts.usage.handle, dtype=tf.int64
        )
        seen_R = usage[:, shard_parts.SEEN]
        num_tables = self._cells.space.num_tables
        if num_tables == 1:
            latest_T = tf.reduce_max(seen_R)[None]
        else:
            tables_R = self._cells.tables_of(self._cells.of_all_rows())
            latest_T = tf.math.unsorted_segment_max(
                seen_R, tables_R, num_tables
            )
        if not self._counts_seconds:
            return {tallies.CLOCK: latest_T}
        return {tallies.EPOCH: self._microseconds() - latest_T}

    def _microseconds(self) -> tf.Tensor:
        return tf.cast(self._seconds() * _MICROSECONDS, tf.int64)

    def note_seen(
        self, rows_M: tf.Tensor, now_T: tf.Tensor
    ) -> list[tf.Operation]:
        """Notes that a step has looked rows up."""
        handle = self._parts.usage.handle
        noted = [
            tf.raw_ops.ResourceScatterNdUpdate(
                ref=handle,
                indices=_coordinates(rows_M, shard_parts.SEEN),
                updates=self._now_of(rows_M, now_T),
            )
        ]
        if self._counts_lookups:
            noted.append(
                tf.raw_ops.ResourceScatterNdAdd(
                    ref=handle,
                    indices=_coordinates(rows_M, shard_parts.COUNT),
                    updates=tf.ones_like(rows_M, tf.int64),
                )
            )
        return noted

    def begin(self, rows_M: tf.Tensor, now_T: tf.Tensor) -> list[tf.Operation]:
        """Notes that rows were made."""
        seen_M = self._now_of(rows_M, now_T)
        columns = [seen_M]
        if self._counts_lookups:
            columns.append(tf.ones_like(seen_M))
        return [
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._parts.usage.handle,
                indices=rows_M,
                updates=tf.stack(columns, 1),
            )
        ]

    def are_old(self, rows_M: tf.Tensor, now_T: tf.Tensor) -> tf.Tensor | None:
        """Returns whether rows are too old to be kept; None: none ever is."""
        limit = self._limit
        if limit is None:
            return None
        now_M = self._now_of(rows_M, now_T)
        return self._usage(rows_M, shard_parts.SEEN) < now_M - limit

    def _now_of(self, rows_M: tf.Tensor, now_T: tf.Tensor) -> tf.Tensor:
        """Returns the present time of some rows."""
        return self._cells.of_tables(now_T, self._cells.of_rows(rows_M))

    def victims(
        self, cells_S: tf.Tensor, num_short_S: tf.Tensor, now_T: tf.Tensor
    ) -> tf.Tensor:
        """Selects rows that make room in full cells.

        All cells of a table lose as many rows as the one that is short of most.

        Args:
            cells_S: Distinct cells of the shard.
            num_short_S: The number of rows that each needs.
            now_T: The present time of the rows of each table.

        Returns:
            Row numbers of the shard, int32, shape `(M,)`.
        """
        num_tables = self._cells.space.num_tables
        if num_tables == 1:
            return self._victims_of(0, cells_S, num_short_S, now_T)
        tables_S = self._cells.tables_of(cells_S)

        tables_M, _ = tf.unique(tables_S)

        def add(number: tf.Tensor, rows_M: tf.Tensor) -> list[tf.Tensor]:
            table = tables_M[number]
            are_its_S = tf.equal(tables_S, table)
            of_table = self._victims_of(
                table,
                tf.boolean_mask(cells_S, are_its_S),
                tf.boolean_mask(num_short_S, are_its_S),
                now_T,
            )
            return [number + 1, tf.concat([rows_M, of_table], 0)]

        # One at a time: together, all cells would need the room of the largest.
        _, rows_M = tf.while_loop(
            lambda number, _: number < tf.size(tables_M),
            add,
            [tf.constant(0), tf.zeros([0], tf.int32)],
            [tf.TensorShape([]), tf.TensorShape([None])],
            parallel_iterations=1,
        )
        return rows_M

    def _victims_of(
        self,
        table: tf.Tensor | int,
        cells_S: tf.Tensor,
        num_short_S: tf.Tensor,
        now_T: tf.Tensor,
    ) -> tf.Tensor:
        """Selects rows of one table."""
        size = tf.gather(self._cells.space.rows_per_cell, table)
        now = tf.gather(now_T, table)
        offsets_C = tf.range(RowSpace.RESERVED, size)
        rows_SC = self._cells.starts_of(cells_S)[:, None] + offsets_C[None, :]
        seen_SC = self._usage(rows_SC, shard_parts.SEEN)
        may_go_SC = seen_SC < now - self._protected
        if self._eviction.beyond_capacity is None:
            may_go_SC = seen_SC < now - (self._limit or 0)
        used_SC = tf.raw_ops.ResourceGatherNd(
            resource=self._parts.records.handle,
            indices=_coordinates(rows_SC, shard_parts.IS_USED),
            dtype=tf.int64,
        )
        may_go_SC &= used_SC > 0
        order_SC = self._order(rows_SC, seen_SC)
        order_SC = tf.where(may_go_SC, order_SC, order_SC.dtype.max)
        count = most = size - RowSpace.RESERVED
        # Otherwise all go that are too old.
        if self._eviction.beyond_capacity is not None:
            num_short = tf.reduce_max(tf.concat([num_short_S, [0]], 0))
            share = tf.gather(
                [
                    int((n - RowSpace.RESERVED) * SHARE)
                    for n in self._cells.space.rows_per_cell
                ],
                table,
            )
            count = tf.minimum(tf.maximum(num_short, share), most)
        _, places = tf.math.top_k(-order_SC, count)
        chosen = tf.gather(rows_SC, places, batch_dims=1)
        are_chosen = tf.gather(may_go_SC, places, batch_dims=1)
        return tf.boolean_mask(chosen, are_chosen)

    def _order(self, rows_SC: tf.Tensor, seen_SC: tf.Tensor) -> tf.Tensor:
        """Returns numbers by which rows go, the lowest first."""
        if self._counts_lookups:
            return self._usage(rows_SC, shard_parts.COUNT)
        if self._eviction.beyond_capacity == SMALLEST_NORM:
            # One cell at a time: no copy of the whole shard.
            return tf.map_fn(
                self._norms,
                rows_SC,
                fn_output_signature=tf.float32,
                parallel_iterations=1,
            )
        return seen_SC

    def _norms(self, rows_C: tf.Tensor) -> tf.Tensor:
        """Returns the L2 norm of rows; those that have none never go."""
        table = self._parts.rows
        rows_CD = tf.raw_ops.ResourceGather(
            resource=table.handle, indices=rows_C, dtype=table.dtype
        )
        norms_C = tf.norm(tf.cast(rows_CD, tf.float32), axis=1)
        return tf.where(tf.math.is_finite(norms_C), norms_C, tf.float32.max)

    @property
    def _counts_lookups(self) -> bool:
        return self._eviction.beyond_capacity == LEAST_FREQUENT

    @property
    def _limit(self) -> int | None:
        if self._eviction.unseen_seconds is not None:
            return int(self._eviction.unseen_seconds * _MICROSECONDS)
        return self._eviction.unseen_steps

    @property
    def _protected(self) -> int:
        return self._steps_per_update * (
            _PROTECTED_MICROSECONDS
            if self._counts_seconds
            else PROTECTED_LOOKUPS
        )

    def _usage(self, rows: tf.Tensor, column: int) -> tf.Tensor:
        return tf.raw_ops.ResourceGatherNd(
            resource=self._parts.usage.handle,
            indices=_coordinates(rows, column),
            dtype=tf.int64,
        )


def usage_columns(eviction: Eviction | None) -> int:
    """Returns the number of columns of the usage that a rule needs."""
    if eviction is None:
        return 0
    return 2 if eviction.beyond_capacity == LEAST_FREQUENT else 1


def _coordinates(rows: tf.Tensor, column: int) -> tf.Tensor:
    return tf.stack([rows, tf.fill(tf.shape(rows), column)], -1)
