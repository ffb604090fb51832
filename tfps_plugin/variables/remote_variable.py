"""A whole variable on one parameter server."""

import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.variables import row_gather
from tfps_plugin.variables.late_bound import LateBoundVariable


class RemoteVariable(LateBoundVariable):
    """A `tf.Variable` that lives on a parameter server.

    It is also what a shard of a `ShardedVariable` is.

    Threading: reads and assignments are safe from several threads; each is
    one operation on the ps.
    """

    def __init__(
        self,
        device: str,
        shape: tf.TensorShape,
        dtype: tf.DType,
        name: str,
        *,
        trainable: bool = True,
        synchronization: tf.VariableSynchronization = (
            tf.VariableSynchronization.AUTO
        ),
        aggregation: tf.VariableAggregation = tf.VariableAggregation.NONE,
    ) -> None:
        """Makes the variable on `device`, without a value yet.

        Args:
            device: Full device name of the ps.
            shape: Full static shape.
            dtype: Dtype of the elements.
            name: Name shown to the user.
            trainable: Whether gradient tapes watch it by themselves.
            synchronization: As in `tf.Variable`.
            aggregation: As in `tf.Variable`.
        """
        with tf.device(device):
            super().__init__(
                shape,
                dtype,
                name,
                trainable=trainable,
                synchronization=synchronization,
                aggregation=aggregation,
            )
        self._family: list[weakref.ref[Any]] = []

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Looks up rows; repeated ids are asked for once.

        Args:
            indices: Row numbers, an integer tensor of any shape.
            name: Ignored; part of TensorFlow's protocol.

        Returns:
            The rows, of shape `indices.shape + shape[1:]`.
        """
        ids = tf.convert_to_tensor(indices)
        ids_U, positions_N = tf.unique(tf.reshape(ids, [-1]))
        rows_ND = tf.gather(super().sparse_read(ids_U), positions_N)
        return row_gather.shaped_like_ids(rows_ND, ids, self.shape[1:])

    def fetch_rows(self, rows: range) -> np.ndarray:
        """Some consecutive rows as an array in this process."""

        def read_once() -> np.ndarray:
            with tf.device(self.device):
                whole = compat.read_resource(self.own_handle, self.dtype)
                part = whole[rows.start : rows.stop]
            return part.numpy()

        return self._read_on_chief(read_once)

    def join_family(self, slot: Any) -> None:
        """Declares that `slot` is updated row by row with this variable.

        Args:
            slot: A variable of the same shape on the same ps, such as an
                optimizer's moment.
        """
        self._family.append(weakref.ref(slot))

    @property
    def family(self) -> list[Any]:
        """The slots that are updated with this variable and still exist."""
        return [slot for ref in self._family if (slot := ref()) is not None]
