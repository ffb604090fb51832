"""Memory of variables that get their values row by row."""

from typing import Any

import tensorflow as tf

from tfps_plugin.variables.storage import on_disk


def allocate(variable: Any) -> None:
    """Gives a variable zeros on its ps, in memory or on disk.

    Args:
        variable: A `RemoteVariable`, whose old value may be lost.
    """
    if variable.on_disk is not None:
        on_disk.allocate(variable, variable.on_disk)
        return
    with tf.device(variable.device):
        tf.raw_ops.AssignVariableOp(
            resource=variable.own_handle,
            value=tf.zeros(variable.shape, variable.dtype),
        )
