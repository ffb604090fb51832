"""One optimizer step on tables whose rows catch up, and its updates.

Shape legend: U distinct rows.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.training.optimizers.catch_up import caught_up_shard
from tfps_plugin.training.optimizers.catch_up import caught_up_tables
from tfps_plugin.training.optimizers.catch_up.caught_up_shard import (
    CaughtUpShard,
)
from tfps_plugin.training.optimizers.catch_up.moment import Moment
from tfps_plugin.training.optimizers.catch_up.step_clock import StepClock
from tfps_plugin.variables.step_trace import View
from tfps_plugin.variables.updates.update_part import UpdatePart


class CaughtUpStep:
    """Moments before and after a step, and the updates between them.

    Threading: only the thread that traces the step uses it.
    """

    def __init__(self, optimizer: Any) -> None:
        """Finds the tables; traces nothing yet.

        Args:
            optimizer: A built Keras optimizer of our strategy, with or without
                tables that catch up.
        """
        self._optimizer = optimizer
        self._tables = caught_up_tables.of(optimizer)
        # Moments before and after the step, by clock.
        self._moments: dict[StepClock, tuple[Moment, Moment]] = {}

    @contextlib.contextmanager
    def counting(self, gradients: Sequence[Any]) -> Iterator[None]:
        """Counts the step on the clocks that rows catch up with.

        Returns:
            A context for the updates of the step.
        """
        if self._tables is None:
            yield
            return
        with self._tables.step(gradients) as self._moments:
            yield

    def numbers(
        self, variable: keras.Variable, gradient: Any, *, is_whole: bool
    ) -> list[tf.Tensor]:
        """Returns the moments as the tensors that an update sends to each ps.

        Args:
            variable: The variable that is updated.
            gradient: A tensor or `tf.IndexedSlices`.
            is_whole: Whether the gradient updates all rows.

        Returns:
            A tensor for the moment before the step and one for the moment after
            it. An empty list if the variable does not catch up.

        Raises:
            UnsupportedError: If the table had to be known before the optimizer
                was built.
        """
        tables = self._tables
        clock = tables and tables.clock_of(compat.value_of(variable))
        if clock is not None:
            return [moment.numbers for moment in self._moments[clock]]
        strategy = compat.strategy_of(self._optimizer)
        if (
            strategy.sparse_update == "caught_up"
            and isinstance(gradient, tf.IndexedSlices)
            and not is_whole
            and caught_up_tables.changes_without_gradient(
                self._optimizer, variable
            )
        ):
            raise errors.UnsupportedError(
                "sparse_update='caught_up' has to know a table before its "
                "optimizer is built, and nobody had looked up rows of this one "
                f"by then. Received: variable={compat.path_of(variable)!r}. "
                "Build the model first (call it on a batch, or "
                "model.build(shape)), and then the optimizer: "
                "optimizer.build(model.trainable_variables)."
            )
        return []

    def catching_up(
        self, part: UpdatePart, numbers: Sequence[tf.Tensor]
    ) -> UpdatePart:
        """Returns a part of an update that sees rows that have caught up.

        Args:
            part: The part, whose `owner` is the variable.
            numbers: The tensors of `numbers`, on the part's ps.

        Raises:
            UnsupportedError: If the rows catch up with another optimizer.
        """
        if not numbers or part.shard is None:
            return part
        shard = caught_up_shard.of(part.shard)
        if shard is None or shard.clock not in self._moments:
            raise errors.UnsupportedError(
                "Two optimizers train one table, whose rows can only catch up "
                "with one of them (sparse_update='caught_up'). Received: "
                f"variable={compat.path_of(part.owner)!r}, "
                f"optimizer={self._optimizer.name!r}. Use one optimizer for "
                "it, or another sparse_update."
            )
        now, after = map(shard.clock.moment, numbers)
        update = CaughtUpUpdate(shard, part.ids_U, now)
        return dataclasses.replace(
            part,
            seen={**part.seen, **update.views()},
            finish=lambda: update.finish(after),
        )


class CaughtUpUpdate:
    """Rows of a table and its slots, as an optimizer's update sees them.

    The update reads present values. Assigned values are stored at once;
    `finish` stores the others, together with the marks of the step.

    Threading: made, used and dropped by the thread that traces the update,
    which holds the lock of the table.
    """

    def __init__(
        self, shard: CaughtUpShard, ids_U: tf.Tensor | None, now: Moment
    ) -> None:
        """Begins an update; reads nothing yet.

        Args:
            shard: The shard that has the rows.
            ids_U: Distinct row numbers; None for all rows.
            now: The newest step before the update.
        """
        self._shard = shard
        self._ids_U = ids_U
        self._now = now
        self._values: dict[str, tf.Tensor] | None = None
        self._stored: set[str] = set()

    def views(self) -> dict[str, View]:
        """Returns a view for each member, by its `_unique_id`."""
        return {
            unique_id: _CaughtUpView(self, key)
            for key, unique_id in self._shard.ids_of_members.items()
        }

    def read(self, key: str) -> tf.Tensor:
        """Returns the present rows of a member."""
        return self._present()[key]

    def assign(self, key: str, value: tf.Tensor) -> None:
        """Assigns the rows of a member."""
        self._present()[key] = value
        self._shard.store(key, value, self._ids_U)
        self._stored.add(key)

    def finish(self, after: Moment) -> None:
        """Stores the remaining values; the caller holds the same lock.

        Args:
            after: The step that the update belongs to.
        """
        for key, value in self._present().items():
            if key not in self._stored:
                self._shard.store(key, value, self._ids_U)
        self._shard.mark(after, self._ids_U)

    def shape(self, key: str) -> tf.TensorShape:
        """Returns the shape of the rows; their number may be unknown."""
        shape: tf.TensorShape = self._shard.member(key).shape
        if self._ids_U is None:
            return shape
        return tf.TensorShape([None]).concatenate(shape[1:])

    def _present(self) -> dict[str, tf.Tensor]:
        if self._values is None:
            self._values = self._shard.present(
                self._shard.keys, self._ids_U, self._now
            )
        return self._values


class _CaughtUpView:
    """The view of one member."""

    def __init__(self, update: CaughtUpUpdate, key: str) -> None:
        self._update = update
        self._key = key

    @property
    def shape(self) -> tf.TensorShape:
        return self._update.shape(self._key)

    def read(self) -> tf.Tensor:
        return self._update.read(self._key)

    def assign(self, method: str, value: Any) -> None:
        value = tf.convert_to_tensor(value)
        if method == "assign_add":
            value = self.read() + value
        elif method == "assign_sub":
            value = self.read() - value
        self._update.assign(self._key, value)
