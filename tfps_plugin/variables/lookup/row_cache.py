"""Copies of the most looked-up rows of a table, on the workers that train.

Shape legend: C places of the cache, U distinct ids, M of them that the
parameter servers are asked for, P places that these ids belong to, D numbers in
a row.
"""

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_tapes
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.lookup import cache_places
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup.shard_order import ShardOrder
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.per_worker.worker_local_handle import (
    WorkerLocalHandle,
)
from tfps_plugin.variables.step_trace import StepTrace

# Numbers that a cache keeps of itself: lookups that have begun, which are its
# clock; the microsecond of the last one; the clock of the last one that ended;
# ids that were asked for; those that it had.
_CLOCK, _USED_AT, _ENDED, _ASKED, _HITS = range(5)

# After a pause this long, all rows are too old. A lane that is not used has a
# clock that stands still.
_PAUSE_MICROSECONDS = 10_000_000

# The chief's number among the lanes.
_CHIEF = -1


class RowCache:
    """Copies of rows of one table; each lane of a worker has its own.

    Lanes do not share one, because a lookup reads places and rows, and another
    lane must not write between the two. A worker that is replaced begins with
    an empty cache. So does every lane with its first call after the program or
    a restore has set values of the table (`Table.epoch`).

    Threading: as `WorkerLocalHandle`.
    """

    def __init__(
        self, table: Table, num_places: int, max_age_steps: int
    ) -> None:
        """Begins empty.

        Args:
            table: The table; its rows are vectors.
            num_places: The number of rows that it can have.
            max_age_steps: The number of later lookups that may use a row.
        """
        self._num_places = num_places
        self._max_age_steps = max_age_steps
        self._num_rows, width = table.shape
        with tf.init_scope():
            self._places = _Places(table, num_places)
            self._rows = _Zeros([num_places, width], table.dtype, "cache_rows")
            self._numbers = _Zeros([5], tf.int64, "cache_numbers")

    def serves(self, table: Table) -> bool:
        """Returns whether the lookup that is being traced may use it.

        It may where all tapes were opened in the same function. Other tapes
        differentiate the function as a whole, and would miss the gradients of
        rows that no parameter server was asked for. And a function that was
        traced under a tape may be called again without one, where rows have to
        be the newest.

        Args:
            table: The table.

        Raises:
            errors.UnsupportedError: If old rows would break a promise.
        """
        step = StepTrace.current()
        if compat.function_graph() is None or step.is_discarded:
            return False
        reason = _refusal(step, table)
        if reason is not None:
            raise errors.UnsupportedError(
                f"The table {table.path!r} has cached rows, and {reason}. "
                "Expected: asynchronous training (tfps.Async()) with one "
                "replica a worker, and tables without "
                "sparse_update='caught_up'. Received: cache_rows="
                f"{self._num_places}. Make the layer without cache_rows."
            )
        return tensorflow_tapes.are_its_own(tf.compat.v1.get_default_graph())

    def rows(
        self, order: ShardOrder, gather: Callable[[ShardOrder], tf.Tensor]
    ) -> tf.Tensor:
        """Returns rows, of which it has some.

        Args:
            order: Distinct row numbers.
            gather: Gathers rows from the parameter servers.

        Returns:
            The rows in the order of the ids, shape `(U, D)`.
        """
        with compat.clear_device(), tf.device(graph_checks.CPU):
            numbers, begun = self._begin()
            now = numbers[_CLOCK]
            ids_U = tf.cast(order.ids_U, tf.int64)
            slots_U = cache_places.slots(
                ids_U, self._num_places, self._num_rows
            )
            found_U3 = tf.raw_ops.ResourceGather(
                resource=self._places.handle, indices=slots_U, dtype=tf.int64
            )
            is_fresh_U = cache_places.is_fresh(
                found_U3, ids_U, now, self._max_age_steps
            )
            fresh_F = tf.where(is_fresh_U)[:, 0]
            missing_M = tf.where(~is_fresh_U)[:, 0]
            had_FD = tf.raw_ops.ResourceGather(
                resource=self._rows.handle,
                indices=tf.gather(slots_U, fresh_F),
                dtype=self._rows.dtype,
            )
            missing = _some_of(order, ~is_fresh_U)
        fetched_MD = gather(missing)
        with compat.clear_device(), tf.device(graph_checks.CPU):
            rows_UD = tf.dynamic_stitch(
                [tf.cast(fresh_F, tf.int32), tf.cast(missing_M, tf.int32)],
                [had_FD, fetched_MD],
            )
            change = cache_places.changes(
                slots_U, ids_U, found_U3, is_fresh_U, now
            )
            kept_KD = tf.gather(rows_UD, change.kept_K)
            # Rows that never arrive must leave no trace.
            with tf.control_dependencies([begun, kept_KD]):
                written = [
                    tf.raw_ops.ResourceScatterUpdate(
                        resource=self._places.handle,
                        indices=tf.gather(slots_U, change.writers_P),
                        updates=change.places_P3,
                    ),
                    tf.raw_ops.ResourceScatterUpdate(
                        resource=self._rows.handle,
                        indices=tf.gather(slots_U, change.kept_K),
                        updates=kept_KD,
                    ),
                ]
            numbers[_ENDED] = now
            numbers[_ASKED] += tf.size(ids_U, tf.int64)
            numbers[_HITS] += tf.size(fresh_F, tf.int64)
            with tf.control_dependencies(written):
                self._store(numbers)
        return rows_UD

    def _begin(self) -> tuple[list[tf.Tensor], tf.Operation]:
        """Returns the numbers with the time of this lookup, and stores them."""
        numbers = tf.unstack(
            tf.raw_ops.ReadVariableOp(
                resource=self._numbers.handle, dtype=tf.int64
            )
            + 0,
            5,
        )
        used_at = tf.cast(tf.timestamp() * 1e6, tf.int64)
        pause = used_at - numbers[_USED_AT]
        is_too_old = (
            # A clock of the machine that was set back is a pause, too.
            (pause < 0)
            | (pause > _PAUSE_MICROSECONDS)
            # A lookup that failed may have written places without their rows.
            | tf.not_equal(numbers[_ENDED], numbers[_CLOCK])
        )
        numbers[_CLOCK] += tf.where(
            is_too_old, tf.constant(self._max_age_steps + 1, tf.int64), 1
        )
        numbers[_USED_AT] = used_at
        return numbers, self._store(numbers)

    def _store(self, numbers: list[tf.Tensor]) -> tf.Operation:
        return tf.raw_ops.AssignVariableOp(
            resource=self._numbers.handle, value=tf.stack(numbers)
        )

    def totals(self) -> tuple[int, int]:
        """Returns the ids that were asked for, and those that it had.

        Raises:
            tf.errors.OpError: If a worker does not answer.
        """
        of_lanes = self._numbers.values()
        return (
            sum(int(each[_ASKED]) for each in of_lanes),
            sum(int(each[_HITS]) for each in of_lanes),
        )


class _Zeros(WorkerLocalHandle):
    """A variable of each lane that begins with zeros."""

    def __init__(self, shape: list[int], dtype: tf.DType, name: str) -> None:
        super().__init__(
            tf.TensorShape(shape), dtype, name, trainable=False, per_lane=True
        )
        self._clear_own()

    def _clear_own(self) -> None:
        """Sets the variable of the chief to zeros."""
        with tf.init_scope(), compat.clear_device(), tf.device(self.device):
            tf.raw_ops.AssignVariableOp(
                resource=self.own_handle,
                value=tf.zeros(self._shape, self._dtype),
            )

    def _initial_copy(self, context: Any) -> tf.Tensor:
        return tf.zeros(self._shape, self._dtype)

    def values(self) -> list[Any]:
        """Returns the value of each lane, and of the chief."""
        copies = [copy.own_handle for copy in self._resident.existing()]
        return [
            chief_reads.to_array(compat.read_resource(handle, self._dtype))
            for handle in [self.own_handle, *copies]
        ]


class _Places(_Zeros):
    """Places, which each lane empties when the table has another epoch.

    They are checked whenever a function is called that uses them. A call that
    has begun goes on with what it has.

    Threading: as `WorkerLocalHandle`; each lane has an epoch of its own.
    """

    def __init__(self, table: Table, num_places: int) -> None:
        super().__init__([num_places, 3], tf.int64, "cache_places")
        self._table = weakref.ref(table)
        # By lane.
        self._epochs: dict[int, list[object]] = {}

    def _handle_now(self) -> tf.Tensor:
        table = self._table()
        context = dispatch_context.current()
        lane = _CHIEF if context is None else context.lane_index
        epoch = [] if table is None else [each.epoch for each in table.shards]
        if self._epochs.get(lane, epoch) != epoch:
            if context is None:
                self._clear_own()
            else:
                self._resident.forget_key(lane)
        handle = super()._handle_now()
        self._epochs[lane] = epoch
        return handle


def _refusal(step: StepTrace, table: Table) -> str | None:
    # They have an exchange, too.
    if step.replica is not None:
        return "replicas of a worker look up together"
    if step.exchange is not None or step.global_step is not None:
        return "tfps.Sync() promises steps on the newest rows"
    if step.is_gated:
        return "tfps.BoundedStaleness promises rows of a bounded age"
    if step.accrual is not None or step.is_in_round:
        return "local steps have rows of their own"
    if any(shard.unseen_steps is not None for shard in table.shards):
        return "sparse_update='caught_up' promises rows as of the newest step"
    return None


def _some_of(order: ShardOrder, is_wanted_U: tf.Tensor) -> ShardOrder:
    """Returns some of the ids, in the same order."""
    local_ids = [
        tf.boolean_mask(ids, is_wanted)
        for ids, is_wanted in zip(
            order.local_ids, order.split(is_wanted_U), strict=True
        )
    ]
    ids_M = tf.boolean_mask(order.ids_U, is_wanted_U)
    counts_S = None
    if order.counts_S is not None:
        counts_S = tf.stack([tf.size(ids) for ids in local_ids])
    return dataclasses.replace(
        order,
        ids_U=ids_M,
        local_ids=local_ids,
        counts_S=counts_S,
        count=tf.size(ids_M),
    )
