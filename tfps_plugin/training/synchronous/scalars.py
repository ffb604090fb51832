"""Scalars of an optimizer, of which every parameter server has a copy.

Updates on each ps need the number of the step, the learning rate, or the
product that Nadam keeps, and a ps cannot ask another one. All of them compute
the same scalars from the same values, so each can have copies.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.cluster.chief import leftovers
from tfps_plugin.training.synchronous.parcels import ParcelLayout
from tfps_plugin.variables.kinds.late_bound import LateBoundVariable
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable


def of_step(layout: ParcelLayout) -> list[RemoteVariable]:
    """Returns the scalars that updates of a ps read or assign.

    Args:
        layout: Layout of the parcels of the ps.
    """
    values = [
        compat.value_of(variable)
        for optimizer in layout.optimizers
        for variable in optimizer.variables
    ]
    values += [v for v in layout.assigned if isinstance(v, MirroredScalar)]
    return [
        *{
            id(value): value
            for value in values
            if isinstance(value, RemoteVariable) and value.shape.rank == 0
        }.values()
    ]


class ScalarsOnPs:
    """The scalars as one function of one ps sees them.

    The ps that holds a scalar changes it itself. The others have a copy, which
    they set when the function begins.

    Threading: only the thread that traces the function uses it.
    """

    def __init__(self, device: str, scalars: Sequence[RemoteVariable]) -> None:
        """Takes the scalars; for use in the function.

        Args:
            device: Device of the ps.
            scalars: The scalars, wherever they are.
        """
        self._views: dict[str, _ResourceView] = {}
        self._copies: list[_ResourceView] = []
        for scalar in scalars:
            is_here = scalar.device == device
            with tf.device(device):
                handle = (
                    # The value itself, also of a scalar that is mirrored.
                    LateBoundVariable.handle.__get__(scalar)
                    if is_here
                    else tf.raw_ops.VarHandleOp(
                        dtype=scalar.dtype,
                        shape=[],
                        container=leftovers.CONTAINER,
                        shared_name=f"synchronous_{scalar._unique_id}",
                    )
                )
            view = _ResourceView(device, handle, scalar.dtype)
            self._views[scalar._unique_id] = view
            if not is_here:
                self._copies.append(view)

    @property
    def views(self) -> Mapping[str, "_ResourceView"]:
        """Views of the scalars, for `StepTrace.viewing`."""
        return self._views

    def begin(self, values: Sequence[tf.Tensor]) -> None:
        """Sets the copies.

        Args:
            values: The values of the scalars of other ps, in order.
        """
        for view, value in zip(self._copies, values, strict=True):
            view.assign("assign", value)


class _ResourceView:
    """A scalar resource on a ps, in place of a variable."""

    def __init__(self, device: str, handle: tf.Tensor, dtype: tf.DType) -> None:
        self._device = device
        self._handle = handle
        self._dtype = dtype

    @property
    def shape(self) -> tf.TensorShape:
        return tf.TensorShape([])

    def read(self) -> tf.Tensor:
        with tf.device(self._device):
            return tensorflow_variables.read_resource(self._here(), self._dtype)

    def assign(self, method: str, value: Any) -> None:
        operation = {
            "assign": tf.raw_ops.AssignVariableOp,
            "assign_add": tf.raw_ops.AssignAddVariableOp,
            "assign_sub": tf.raw_ops.AssignSubVariableOp,
        }[method]
        with tf.device(self._device):
            operation(
                resource=self._here(),
                value=tf.convert_to_tensor(value, self._dtype),
            )

    def _here(self) -> tf.Tensor:
        """Returns the handle as the loop or branch being traced has it."""
        return tensorflow_variables.in_graph(
            self._handle, tf.compat.v1.get_default_graph()
        )
