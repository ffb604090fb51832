"""What rounding left off a gradient, kept for the next one.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to
Data-Parallel Distributed Training of Speech DNNs" (2014): rounding errors that
are added to the next gradient before it is rounded are not lost, only late.
"""

import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.variables import wire
from tfps_plugin.variables.remote_variable import RemoteVariable
from tfps_plugin.variables.worker_local import WorkerLocalVariable


def rounded(
    shard: RemoteVariable, gradient: tf.Tensor, wire_dtype: tf.DType | None
) -> tf.Tensor:
    """A dense gradient as it travels; to be called on the worker.

    Args:
        shard: The variable on one parameter server that it belongs to.
        gradient: Of the shard's shape.
        wire_dtype: From `wire.dtype_for`.

    Returns:
        What `wire.widened` takes.
    """
    if wire_dtype != tf.int8:
        return wire.narrowed(gradient, wire_dtype)
    if shard.gradient_residual is None:
        shard.gradient_residual = GradientResidual(shard, gradient.dtype)
    wanted = shard.gradient_residual.add_to(gradient)
    code = wire.narrowed(wanted, wire_dtype)
    shard.gradient_residual.keep(
        wanted - wire.widened(code, wanted.dtype, wanted.shape[-1])
    )
    return code


class GradientResidual:
    """Of one dense gradient, of every lane its own, on its worker.

    What a worker had kept is lost with it: less than one step of rounding for
    each number.

    Threading: a lane runs one closure at a time, and has its own.
    """

    def __init__(self, shard: RemoteVariable, dtype: tf.DType) -> None:
        """Begins with nothing.

        Args:
            shard: The variable on one parameter server that it belongs to.
            dtype: Of the gradient.
        """
        with tf.init_scope(), compat.clear_device():
            self._kept = WorkerLocalVariable(
                tf.zeros(shard.shape, dtype), "gradient_residual"
            )

    def add_to(self, gradient: tf.Tensor) -> tf.Tensor:
        """In a function: the gradient, and what was kept."""
        return gradient + self._kept.read_value()

    def keep(self, residual: tf.Tensor) -> None:
        """In a function: keeps what rounding has left off."""
        self._kept.assign(residual)
