"""Values on their way from one parameter server to another, via the chief.

Tables travel in slices of about 64 MB, so that the chief never holds a whole
one.
"""

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.recovery.checkpoints.parts import SLICE_BYTES
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.saving import saved_form
from tfps_plugin.variables.storage import allocation

_CHIEF = "/device:CPU:0"


def read(variable: RemoteVariable) -> tf.Tensor:
    """Returns the whole value of a variable, on the chief."""
    with tf.device(variable.device):
        value = compat.read_resource(variable.own_handle, variable.dtype)
    with tf.device(_CHIEF):
        return tf.identity(value)


def assign(target: RemoteVariable, value: tf.Tensor) -> None:
    """Assigns a value, which may be on another task, to a variable."""
    with tf.device(target.device):
        tf.raw_ops.AssignVariableOp(
            resource=target.own_handle, value=tf.identity(value)
        )


def copy_rows(source: RemoteVariable, target: RemoteVariable) -> None:
    """Copies all rows of a table to a table on another parameter server.

    Args:
        source: The table to read.
        target: A table of the same shape and dtype.
    """
    allocation.allocate(target)
    for rows in saved_form.pieces(source, SLICE_BYTES):
        with tf.device(source.device):
            numbers = tf.range(rows.start, rows.stop, dtype=tf.int64)
            # Reading the variable would copy the whole table.
            values = tf.raw_ops.ResourceGather(
                resource=source.own_handle, indices=numbers, dtype=source.dtype
            )
        scatter(target, numbers, values)


def write_rows(
    part: Part, handle: tf.Tensor, rows: tf.Tensor, target: RemoteVariable
) -> None:
    """Copies some rows of a part to its copy on another parameter server.

    Args:
        part: A part of a table.
        handle: Handle of its variable, which may have another one by now.
        rows: Row numbers within the part, int64 of shape `(N,)`, on its ps.
        target: The copy.
    """
    step = max(1, SLICE_BYTES // part.row_bytes)
    for first in range(0, int(rows.shape[0]), step):
        with tf.device(part.variable.device):
            numbers = rows[first : first + step]
            values = tf.raw_ops.ResourceGather(
                resource=handle, indices=numbers, dtype=part.variable.dtype
            )
        scatter(target, numbers, values)


def scatter(target: RemoteVariable, rows: tf.Tensor, values: tf.Tensor) -> None:
    """Writes rows, which may be on another task, into a table.

    Args:
        target: The table.
        rows: Their numbers in it, shape `(N,)`.
        values: The rows, of shape `(N, ...)`.
    """
    with tf.device(_CHIEF):
        rows, values = tf.identity(rows), tf.identity(values)
    with tf.device(target.device):
        tf.raw_ops.ResourceScatterUpdate(
            resource=target.own_handle, indices=rows, updates=values
        )
