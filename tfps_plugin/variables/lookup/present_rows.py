"""Rows of a variable as the newest optimizer step has left them.

A table whose rows catch up lazily (`sparse_update="caught_up"`) stores each
row as of the step that last updated it. Whoever reads such a table reads it
through this module.

Shape legend: U distinct rows, D the rest of a row's shape.
"""

from typing import Any
from typing import Protocol

import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat


class UnseenSteps(Protocol):
    """Steps that the rows of one variable on one ps have still to see."""

    def caught_up(
        self, stored_UD: tf.Tensor, ids_U: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the present value of stored rows, on the current device.

        Args:
            stored_UD: Rows as they are stored.
            ids_U: Their numbers; None for all rows in their order.
        """

    def now(self) -> tf.Tensor:
        """Returns the newest step, on the ps; to be called before its lock."""

    def store(self, ids: tf.Tensor | None, now: tf.Tensor) -> None:
        """Stores the present value of rows, under the lock of the variable.

        Args:
            ids: Their numbers, of any shape; None for all rows.
            now: From `now`.
        """

    def settle(self) -> None:
        """Stores the present value of all rows; on the chief only."""


def gather(variable: Any, ids_U: tf.Tensor) -> tf.Tensor:
    """Gathers rows of a variable on its ps, where the caller has to be.

    Args:
        variable: A `RemoteVariable`.
        ids_U: Distinct row numbers, shape `(U,)`.

    Returns:
        The rows, shape `(U, D)`. Their gradient is that of the gather.
    """
    rows_UD = tf.raw_ops.ResourceGather(
        resource=variable.handle, indices=ids_U, dtype=variable.dtype
    )
    return _present(variable, rows_UD, ids_U)


def read(variable: Any) -> tf.Tensor:
    """Reads all of a variable on its ps, where the caller has to be.

    Args:
        variable: A `RemoteVariable`.

    Returns:
        Its value. The gradient is that of the read.
    """
    value = compat.read_resource(variable.handle, variable.dtype)
    return present_value(variable, value)


def present_value(variable: Any, stored: tf.Tensor) -> tf.Tensor:
    """Returns the present value of all rows of a variable.

    Args:
        variable: A `RemoteVariable`.
        stored: The value that was read of it.
    """
    return _present(variable, stored, None)


def _present(
    variable: Any, stored_UD: tf.Tensor, ids_U: tf.Tensor | None
) -> tf.Tensor:
    if variable.unseen_steps is None:
        return stored_UD
    with compat.stop_recording(), tf.device(variable.device):
        present_UD = variable.unseen_steps.caught_up(stored_UD, ids_U)
    if present_UD is stored_UD:
        return stored_UD
    return compat.with_gradient_of(stored_UD, present_UD)
