"""Lets an unmodified optimizer see only some rows of a variable.

An optimizer's `update_step(gradient, variable, learning_rate)` reads and
assigns the variable and its slots. Under a view, the same code sees the rows
that a batch touched, or one shard of a table, and its assignments become
updates of just those. `StepTrace.viewing` puts a view in a variable's place.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables.lookup import present_rows
from tfps_plugin.variables.step_trace import StepTrace


class RowsView:
    """Some rows of one shard (or of a whole variable on one ps).

    TensorFlow adds to rows number by number, but copies rows several times as
    fast. So an addition computes new rows from those read, and writes them, if
    nobody else can have changed them meanwhile. This holds for slots under the
    update lock, which only updates change. It holds for the variable itself in
    steps of `fit`: there, the chief writes between two steps, and steps change
    a table only under the lock. In a custom loop, an addition is scattered as
    such, so that concurrent additions of the chief are kept.
    """

    def __init__(
        self,
        shard: tf.Variable,
        local_ids_U: tf.Tensor,
        *,
        is_slot: bool = False,
    ) -> None:
        """Creates the view.

        Args:
            shard: The variable on its ps.
            local_ids_U: Distinct row numbers of the shard, shape `(U,)`.
            is_slot: Whether only updates under the update lock change it.
        """
        self._shard = shard
        self._local_ids_U = local_ids_U
        self._is_slot = is_slot
        self._rows: tf.Tensor | None = None

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of the rows seen; their number is known at run time."""
        return tf.TensorShape([None]).concatenate(self._shard.shape[1:])

    def read(self) -> tf.Tensor:
        """Returns the rows; gathers them once, and again after an addition."""
        if self._rows is None or not _is_here(self._rows):
            # No sparse_read(): the ids are already distinct.
            self._rows = present_rows.gather_stored(
                self._shard, self._local_ids_U
            )
        return self._rows

    def assign(self, method: str, value: Any) -> None:
        """Scatters `value` to the rows seen."""
        value = tf.convert_to_tensor(value, self._shard.dtype)
        if method != "assign" and self._is_alone():
            rows_UD = self.read()
            value = (
                rows_UD + value if method == "assign_add" else rows_UD - value
            )
            method = "assign"
        rows = tf.IndexedSlices(value, self._local_ids_U)
        if method == "assign":
            self._shard.scatter_update(rows)
            self._rows = value
        elif method == "assign_add":
            self._shard.scatter_add(rows)
            self._rows = None
        else:
            self._shard.scatter_sub(rows)
            self._rows = None

    def _is_alone(self) -> bool:
        """Returns whether nobody else can change the rows now."""
        step = StepTrace.current()
        return step.holds_a_lock and (self._is_slot or step.chief_waits)


def _is_here(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor can be used here, in the current graph."""
    if not tf.is_symbolic_tensor(tensor):
        return True
    return tensor.graph is tf.compat.v1.get_default_graph()


class ShardView:
    """One shard of a table, as if it were the whole variable."""

    def __init__(self, shard: tf.Variable) -> None:
        """Creates the view of `shard`, a variable on its ps."""
        self._shard = shard

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of the shard."""
        return self._shard.shape

    def read(self) -> tf.Tensor:
        """Returns the shard's value."""
        return self._shard.read_value()

    def assign(self, method: str, value: Any) -> None:
        """Assigns the shard."""
        getattr(self._shard, method)(value)


class ValueView:
    """A value that was read before, in place of a scalar.

    A value that every update of a step needs, such as the learning rate, is
    read once and passed on.
    """

    def __init__(self, name: str, value: tf.Tensor) -> None:
        """Creates the view.

        Args:
            name: Name of the variable, for errors.
            value: The value that is seen.
        """
        self._name = name
        self._value = value

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of the value."""
        return self._value.shape

    def read(self) -> tf.Tensor:
        """Returns the value."""
        return self._value

    def assign(self, method: str, value: Any) -> None:
        """Refuses: the value belongs to the whole step."""
        raise errors.UnsupportedError(
            f"{method} of {self._name!r} inside an optimizer's update_step: "
            "it is the same for all variables of a step. Change it before or "
            "after optimizer.apply()."
        )
