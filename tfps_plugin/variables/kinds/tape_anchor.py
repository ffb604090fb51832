"""A stand-in for the shards of a table, for gradient tapes to watch."""

import weakref
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker.worker_local_handle import (
    WorkerLocalHandle,
)


class TapeAnchor(WorkerLocalHandle):
    """A variable of a table's shape and dtype, with no rows in it.

    All reads of a table are functions of `token`, so a tape finds one source,
    whichever shards were read, and gives one gradient. Every worker has its
    own, so that a token costs no message.
    """

    def __init__(
        self,
        shape: tf.TensorShape,
        dtype: tf.DType,
        name: str,
        table: Any,
        **options: Any,
    ) -> None:
        """Makes the chief's own anchor.

        Args:
            shape: Full static shape of the table.
            dtype: Dtype of the table.
            name: Name shown to the user.
            table: The variable that tapes and functions report as used. It is
                not kept alive.
            **options: As for `WorkerLocalHandle`.
        """
        super().__init__(shape, dtype, name, **options)
        self._table = weakref.ref(table)
        self._empty(self.own_handle)

    def _build_copy(self, context: DispatchContext) -> RemoteVariable:
        copy = super()._build_copy(context)
        with tf.device(copy.device):
            self._empty(copy.own_handle)
        return copy

    def _empty(self, handle: tf.Tensor) -> None:
        with tf.init_scope():
            tf.raw_ops.AssignVariableOp(
                resource=handle,
                value=tf.zeros([0, *self._shape.as_list()[1:]], self._dtype),
            )

    @property
    def token(self) -> tf.Tensor:
        """Returns a tensor whose gradient is that of the table.

        It is not the handle: TensorFlow cannot differentiate a loop in which a
        handle goes through a function with a custom gradient.
        """
        compat.variable_accessed(self._table())
        return tf.raw_ops.ReadVariableOp(
            resource=self.handle, dtype=self._dtype
        )
