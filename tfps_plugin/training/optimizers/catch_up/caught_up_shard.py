"""Rows of a table and its slots that catch up when they are used.

Shape legend: U distinct rows, D the rest of a row's shape.
"""

import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.training.optimizers.catch_up import gap as gaps
from tfps_plugin.training.optimizers.catch_up.moment import Moment
from tfps_plugin.training.optimizers.catch_up.step_clock import StepClock
from tfps_plugin.training.optimizers.catch_up.zero_gradients import TABLE
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.lookup import present_rows

# A ps that settles handles blocks of this many bytes of the table.
_BLOCK_BYTES = 4 << 20


class CaughtUpShard:
    """Shard of a table whose rows catch up, and of its slots.

    The ps stores every row as of the step that last updated it, together with
    the marks of that step. Present values are computed on demand; only updates
    and `settle` store them.

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
        """Creates the shard, and registers it with the shard of the table.

        Args:
            clock: Clock of the optimizer.
            decay: Weight decay of this table; None if it has none.
            table: A variable whose rows are looked up.
            index: Index of the shard.
            find_slots: Returns every slot that changes without a gradient;
                optimizers create them after their clock.
            marks: Variable of shape `(rows, M)`, float64, on the same ps: the
                marks of a `Moment` of the clock.
        """
        self.clock = clock
        self._decay = decay
        self._index = index
        self._find_slots = find_slots
        # Weak, because the shards refer to this object.
        self._table = weakref.ref(table)
        self._slots: dict[str, weakref.ref[Any]] | None = None
        self._marks = marks
        self._settle_on_ps = tf.function(self._settle_behind)
        table.shards[index].unseen_steps = _UnseenSteps(self, TABLE)

    def attach_slots(self) -> None:
        """Lets readers of slots catch up; updates do so by themselves."""
        _ = self._members

    @property
    def moves_table(self) -> bool:
        """True if the table itself, not just its slots, has to catch up."""
        return self.clock.zero_gradients.moves_table(self._decay)

    @property
    def ids_of_members(self) -> dict[str, str]:
        """The `_unique_id` by which an update refers to each member.

        For a sharded variable it is that of the whole.
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

    def present(
        self,
        keys: Iterable[str],
        ids_U: tf.Tensor | None,
        now: Moment,
        stored: Mapping[str, tf.Tensor] | None = None,
    ) -> dict[str, tf.Tensor]:
        """Returns rows of members as of the newest step, by their keys.

        Args:
            keys: Keys of the requested members.
            ids_U: The numbers of the rows; None for all rows.
            now: The newest step.
            stored: Rows of members that were already read.
        """
        table = self.member(TABLE)
        # Half precision cannot count the steps.
        dtype = table.dtype if table.dtype.size > 2 else tf.float32
        gap = gaps.between(
            _stored(self._marks, ids_U),
            now,
            self._decay,
            dtype,
            table.shape.rank,
        )
        values = _Rows(self, ids_U, dtype, stored or {})
        after = self.clock.zero_gradients.after
        return {
            key: tf.cast(after(key, values, gap), self.member(key).dtype)
            for key in keys
        }

    def bring_up(self, ids_U: tf.Tensor | None, now: Moment) -> None:
        """Stores the present rows of all members, under the lock.

        Args:
            ids_U: Numbers of the rows; None for all rows.
            now: The newest step.
        """
        for key, value in self.present(self.keys, ids_U, now).items():
            self.store(key, value, ids_U)
        self.mark(now, ids_U)

    def store(self, key: str, value: tf.Tensor, ids_U: Any) -> None:
        """Stores rows of a member; all rows if `ids_U` is None."""
        _store(self.member(key), value, ids_U)

    def mark(self, moment: Moment, ids_U: tf.Tensor | None) -> None:
        """Marks rows as up to date at a moment; all rows if `ids_U` is None."""
        num_rows = self._marks.shape[0] if ids_U is None else tf.size(ids_U)
        marks_UM = tf.tile(moment.marks[tf.newaxis], [num_rows, 1])
        _store(self._marks, marks_UM, ids_U)

    def settle(self) -> None:
        """Stores the present values of all rows; for the chief only."""
        chief_reads.read(lambda: self._settle_on_ps(self.clock.now().numbers))

    def _settle_behind(self, numbers: tf.Tensor) -> None:
        with tf.device(self._marks.device):
            marks = _stored(self._marks, None)
            # Only the marks tell: a checkpoint may have been restored.
            is_behind = tf.reduce_min(marks[:, 0]) < tf.identity(numbers)[0]
        if is_behind:
            self._settle_blocks(numbers)

    def _settle_blocks(self, numbers: tf.Tensor) -> None:
        table = self.member(TABLE)
        num_rows = table.shape[0]
        row_bytes = max(1, table.dtype.size * table.shape[1:].num_elements())
        block = max(1, _BLOCK_BYTES // row_bytes)
        with tf.device(table.device):
            moment = self.clock.moment(tf.identity(numbers))
            for start in tf.range(0, num_rows, block):
                ids_U = tf.range(start, tf.minimum(start + block, num_rows))
                with table.update_lock.holding([ids_U]):
                    self.bring_up(ids_U, moment)


class _UnseenSteps:
    """Steps that the rows of one member have yet to see."""

    def __init__(self, shard: CaughtUpShard, key: str) -> None:
        self.shard = shard
        self._key = key

    def caught_up(
        self, stored_UD: tf.Tensor, ids_U: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the present value of stored rows, on the current device.

        Args:
            stored_UD: Rows as they are stored.
            ids_U: Their numbers; None for all rows in their order.
        """
        shard = self.shard
        if self._key == TABLE and not shard.moves_table:
            return stored_UD
        now = shard.clock.now()
        present = shard.present([self._key], ids_U, now, {self._key: stored_UD})
        return present[self._key]

    def now(self) -> tf.Tensor:
        """Returns the newest step, on the ps; call it before locking."""
        numbers = self.shard.clock.now().numbers
        with tf.device(self.shard.member(self._key).device):
            return tf.identity(numbers)

    def store(self, ids: tf.Tensor | None, now: tf.Tensor) -> None:
        """Stores the present value of rows, under the lock of the variable.

        Args:
            ids: Their numbers, of any shape; None for all rows.
            now: Result of `now`.
        """
        with tf.device(self.shard.member(self._key).device):
            ids_N = None if ids is None else tf.reshape(ids, [-1])
            self.shard.bring_up(ids_N, self.shard.clock.moment(now))

    def settle(self) -> None:
        """Stores the present value of all rows; on the chief only."""
        self.shard.settle()


def of(variable: Any) -> CaughtUpShard | None:
    """Returns the `CaughtUpShard` of a variable, if its rows catch up."""
    steps = variable.unseen_steps
    return None if steps is None else steps.shard


class _Rows(Mapping[str, tf.Tensor]):
    """Stored rows of the members of a shard, read on demand."""

    def __init__(
        self,
        shard: CaughtUpShard,
        ids_U: tf.Tensor | None,
        dtype: tf.DType,
        known: Mapping[str, tf.Tensor],
    ) -> None:
        self._shard = shard
        self._ids_U = ids_U
        self._dtype = dtype
        self._known = {k: tf.cast(rows, dtype) for k, rows in known.items()}

    def __getitem__(self, key: str) -> tf.Tensor:
        if key not in self._known:
            stored_UD = _stored(self._shard.member(key), self._ids_U)
            self._known[key] = tf.cast(stored_UD, self._dtype)
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shard.keys)

    def __len__(self) -> int:
        return len(self._shard.keys)


def _stored(variable: Any, ids_U: tf.Tensor | None) -> tf.Tensor:
    if ids_U is None:
        value = compat.read_resource(variable.handle, variable.dtype)
        return tf.ensure_shape(value, variable.shape)
    return present_rows.gather_stored(variable, ids_U)


def _store(variable: Any, value: tf.Tensor, ids_U: tf.Tensor | None) -> None:
    if ids_U is None:
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
    else:
        tf.raw_ops.ResourceScatterUpdate(
            resource=variable.handle, indices=ids_U, updates=value
        )
