"""Rows of a table and its slots that catch up when they are used.

Shape legend: U distinct rows, D the rest of a row's shape.
"""

import weakref
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.training.optimizers.catch_up.step_clock import NUM_MARKS
from tfps_plugin.training.optimizers.catch_up.step_clock import Moment
from tfps_plugin.training.optimizers.catch_up.step_clock import StepClock
from tfps_plugin.training.optimizers.catch_up.zero_gradients import TABLE
from tfps_plugin.training.optimizers.catch_up.zero_gradients import Gap
from tfps_plugin.variables import chief_reads

# A ps that settles has the rows of so many bytes of the table in its hands.
_BLOCK_BYTES = 4 << 20


class CaughtUpShard:
    """What one ps has of a table whose rows catch up, and of its slots.

    The ps stores every row as of the step that last updated it, together with
    the marks of that step. Values of now are computed where they are asked
    for; only updates, and `settle`, store them.

    Threading: safe from several threads. Rows are settled block by block, each
    under the lock of the table.
    """

    def __init__(
        self,
        clock: StepClock,
        decay: float | None,
        table: Any,
        index: int,
        find_slots: Callable[[], Mapping[str, Any]],
        marks: Any,
    ) -> None:
        """Joins what belongs together.

        Args:
            clock: Of the optimizer.
            decay: Weight decay of this table; None: it has none.
            table: A variable whose rows are looked up.
            index: Which of its shards this is.
            find_slots: Returns every slot that changes without a gradient;
                optimizers make them after their clock.
            marks: Variable of shape `(rows, 3)`, float64, on the same ps.
        """
        self.clock = clock
        self._decay = decay
        self._index = index
        self._find_slots = find_slots
        # The shards know this object, and end with their own owners.
        self._table = weakref.ref(table)
        self._slots: dict[str, weakref.ref[Any]] | None = None
        self._marks = marks
        self._settle_on_ps = tf.function(self._settle_behind)
        table.shards[index].unseen_steps = _UnseenSteps(self, TABLE)

    @property
    def ids_of_members(self) -> dict[str, str]:
        """The `_unique_id` that an optimizer's update knows each member by.

        It is that of the whole variable, if it is cut.
        """
        return {
            key: reference()._unique_id
            for key, reference in self._members.items()
        }

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all members, the table's first."""
        return tuple(self._members)

    @property
    def _members(self) -> dict[str, Any]:
        if self._slots is None:
            slots = self._find_slots()
            for key, slot in slots.items():
                slot.shards[self._index].unseen_steps = _UnseenSteps(self, key)
            self._slots = {k: weakref.ref(slot) for k, slot in slots.items()}
        return {TABLE: self._table, **self._slots}

    def member(self, key: str) -> Any:
        """Returns the shard of the table, or of a slot."""
        member = self._members[key]()
        if member is None:
            raise RuntimeError(
                f"The slot {key!r} of a table does not exist any more. Keep "
                "the optimizer for as long as the table is used."
            )
        return member.shards[self._index]

    def stored(self, key: str, ids_U: tf.Tensor | None) -> tf.Tensor:
        """Returns rows of a member as they are stored; None for all."""
        return _stored(self.member(key), ids_U)

    def present(
        self, stored: Mapping[str, tf.Tensor], ids_U: Any, now: Moment
    ) -> dict[str, tf.Tensor]:
        """Returns the rows of all members as of the newest step.

        Args:
            stored: Rows of all members as they are stored, shape `(U, D)`.
            ids_U: Their numbers; None for all rows.
            now: The newest step.
        """
        marks_U3 = _stored(self._marks, ids_U)
        table_UD = stored[TABLE]
        one_for_each_row = [-1] + [1] * (table_UD.shape.rank - 1)
        step, elapsed, potential = (
            tf.reshape(part, one_for_each_row)
            for part in tf.unstack(marks_U3, NUM_MARKS, axis=1)
        )
        # Where workers train at the same time, a row may have been updated
        # after the newest step that its reader knows of.
        steps = tf.maximum(now.step - step, 0)
        # Half precision cannot count the steps.
        dtype = table_UD.dtype if table_UD.dtype.size > 2 else tf.float32
        gap = Gap(
            steps=tf.cast(steps, dtype),
            last_step=tf.cast(now.iterations, dtype),
            elapsed=tf.cast(tf.maximum(now.elapsed - elapsed, 0), dtype),
            potential_then=tf.cast(potential, dtype),
            potential_now=tf.cast(now.potential, dtype),
            rate=tf.cast(now.rate, dtype),
            decay=self._decay,
        )
        after = self.clock.zero_gradients.after(
            {key: tf.cast(value, dtype) for key, value in stored.items()}, gap
        )
        # Bit for bit what is stored where nothing has passed.
        return {
            key: tf.where(steps > 0, tf.cast(after[key], value.dtype), value)
            for key, value in stored.items()
        }

    def bring_up(self, ids_U: tf.Tensor | None, now: Moment) -> None:
        """Stores the present rows of all members, under the lock.

        Args:
            ids_U: Their numbers; None for all rows.
            now: The newest step.
        """
        stored = {key: self.stored(key, ids_U) for key in self.keys}
        for key, value in self.present(stored, ids_U, now).items():
            self.store(key, value, ids_U)
        self.mark(now, ids_U)

    def store(self, key: str, value: tf.Tensor, ids_U: Any) -> None:
        """Stores rows of a member; None for all."""
        _store(self.member(key), value, ids_U)

    def mark(self, moment: Moment, ids_U: tf.Tensor | None) -> None:
        """Notes that rows are as of a moment; None for all."""
        num_rows = self._marks.shape[0] if ids_U is None else tf.size(ids_U)
        marks_U3 = tf.tile(moment.marks[tf.newaxis], [num_rows, 1])
        _store(self._marks, marks_U3, ids_U)

    def settle(self) -> None:
        """Stores the present value of all rows; on the chief only."""
        chief_reads.read(lambda: self._settle_on_ps(self.clock.now().numbers))

    def _settle_behind(self, numbers: tf.Tensor) -> None:
        with tf.device(self._marks.device):
            marks = _stored(self._marks, None)
            # Nobody else may know: a checkpoint may have been restored.
            is_behind = tf.reduce_min(marks[:, 0]) < tf.identity(numbers)[0]
        if is_behind:
            self._settle_blocks(numbers)

    def _settle_blocks(self, numbers: tf.Tensor) -> None:
        table = self.member(TABLE)
        num_rows = table.shape[0]
        row_bytes = max(1, table.dtype.size * table.shape[1:].num_elements())
        block = max(1, _BLOCK_BYTES // row_bytes)
        with tf.device(table.device):
            moment = Moment(tf.identity(numbers))
            for start in tf.range(0, num_rows, block):
                ids_U = tf.range(start, tf.minimum(start + block, num_rows))
                with table.update_lock.holding([ids_U]):
                    self.bring_up(ids_U, moment)


class _UnseenSteps:
    """A `present_rows.UnseenSteps` of one member."""

    def __init__(self, shard: CaughtUpShard, key: str) -> None:
        self.shard = shard
        self._key = key

    def caught_up(
        self, stored_UD: tf.Tensor, ids_U: tf.Tensor | None
    ) -> tf.Tensor:
        shard = self.shard
        stored = {
            key: stored_UD if key == self._key else shard.stored(key, ids_U)
            for key in shard.keys
        }
        return shard.present(stored, ids_U, shard.clock.now())[self._key]

    def now(self) -> tf.Tensor:
        numbers = self.shard.clock.now().numbers
        with tf.device(self.shard.member(self._key).device):
            return tf.identity(numbers)

    def store(self, ids: tf.Tensor | None, now: tf.Tensor) -> None:
        with tf.device(self.shard.member(self._key).device):
            ids_N = None if ids is None else tf.reshape(ids, [-1])
            self.shard.bring_up(ids_N, Moment(now))

    def settle(self) -> None:
        self.shard.settle()


def of(variable: Any) -> CaughtUpShard | None:
    """Returns what a variable of a ps belongs to, if its rows catch up."""
    steps = variable.unseen_steps
    return None if steps is None else steps.shard


def _stored(variable: Any, ids_U: tf.Tensor | None) -> tf.Tensor:
    if ids_U is None:
        value = compat.read_resource(variable.handle, variable.dtype)
        return tf.ensure_shape(value, variable.shape)
    return tf.raw_ops.ResourceGather(
        resource=variable.handle, indices=ids_U, dtype=variable.dtype
    )


def _store(variable: Any, value: tf.Tensor, ids_U: tf.Tensor | None) -> None:
    if ids_U is None:
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
    else:
        tf.raw_ops.ResourceScatterUpdate(
            resource=variable.handle, indices=ids_U, updates=value
        )
