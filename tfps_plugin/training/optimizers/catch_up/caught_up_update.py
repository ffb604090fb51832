"""One update of rows that catch up first.

Shape legend: U distinct rows, D the rest of a row's shape.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin.training.optimizers.catch_up.caught_up_shard import (
    CaughtUpShard,
)
from tfps_plugin.training.optimizers.catch_up.moment import Moment
from tfps_plugin.variables.step_trace import View


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
