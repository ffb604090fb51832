"""Error feedback: adds a gradient's rounding error to the next gradient.

Rounding errors that are added to the next gradient before it is rounded are
not lost, only late. See Seide et al., "1-Bit Stochastic Gradient Descent and
its Application to Data-Parallel Distributed Training of Speech DNNs" (2014).
"""

from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.per_worker.worker_local_handle import (
    WorkerLocalHandle,
)
from tfps_plugin.variables.saving import shard_reader


def corrected(variable: Any, gradient: Any) -> Any:
    """Adds the rounding error of the previous gradient, and keeps the new one.

    Args:
        variable: A variable on parameter servers.
        gradient: Its gradient, on the worker.

    Returns:
        The gradient to send. It is `gradient` itself if that is sparse or does
        not travel as int8. No error is kept for the dense gradient of a large
        table: it is rounded stochastically.
    """
    if not isinstance(gradient, tf.Tensor):
        return gradient
    wire_dtype = wire.dtype_for(variable)
    if wire_dtype != tf.int8 or not gradient.shape.is_fully_defined():
        return gradient

    def arrived(value: tf.Tensor, *, stochastic: bool) -> tf.Tensor:
        code = wire.narrowed(value, wire_dtype, stochastic=stochastic)
        return wire.widened(code, value.dtype, value.shape[-1])

    if shard_reader.is_large(variable):
        return arrived(gradient, stochastic=True)
    if variable.gradient_residual is None:
        variable.gradient_residual = GradientResidual(gradient.shape)
    residual = variable.gradient_residual.read_value()
    wanted = tf.cast(gradient, tf.float32) + residual
    rest = wanted - arrived(wanted, stochastic=False)
    # A gradient that is not finite must not spoil all that follow.
    variable.gradient_residual.assign(
        tf.where(tf.math.is_finite(rest), rest, tf.zeros_like(rest))
    )
    return tf.cast(wanted, gradient.dtype)


class GradientResidual(WorkerLocalHandle):
    """Rounding errors of one dense gradient, one copy for each lane.

    They live on the lane's worker, and are lost with it: less than one unit of
    the last place of each number.

    Threading: a lane runs one closure at a time, and has a copy of its own.
    """

    def __init__(self, shape: tf.TensorShape) -> None:
        """Begins with zeros; a worker allocates its own when it needs them."""
        with tf.init_scope():
            super().__init__(
                shape,
                tf.float32,
                "gradient_residual",
                trainable=False,
                per_lane=True,
            )
            with compat.clear_device(), tf.device(self.device):
                tf.raw_ops.AssignVariableOp(
                    resource=self.own_handle, value=tf.zeros(shape)
                )

    def _initial_copy(self, context: DispatchContext) -> tf.Tensor:
        return tf.zeros(self.shape, self.dtype)
