"""A resource of which every worker, or every lane, has its own."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.kinds.late_bound import LateBoundVariable
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident


class WorkerLocalHandle(LateBoundVariable):
    """A resource that resolves to the calling worker's own.

    On the chief's own threads it is a resource of the chief. In a closure it
    is a resource of the worker, so passing it costs no message.
    """

    def __init__(
        self,
        shape: tf.TensorShape,
        dtype: tf.DType,
        name: str,
        *,
        per_lane: bool = False,
        **options: Any,
    ) -> None:
        """Makes the chief's own resource; the workers' are made when needed.

        Args:
            shape: Full static shape.
            dtype: Dtype of the elements.
            name: Name shown to the user.
            per_lane: Whether each lane, and not just each worker, has its own.
            **options: As for `LateBoundVariable`.
        """
        with compat.clear_device(), tf.device("/device:CPU:0"):
            super().__init__(shape, dtype, name, **options)
        self._resident: WorkerResident[RemoteVariable] = WorkerResident(
            self._build_copy, per_lane=per_lane, take_over=self._taker()
        )

    def _build_copy(self, context: DispatchContext) -> RemoteVariable:
        copy = RemoteVariable(
            context.cpu_device,
            self._shape,
            self._dtype,
            self._handle_name.removesuffix(":0"),
            trainable=False,
        )
        with tf.device(context.cpu_device):
            value = self._initial_copy(context)
            if value is not None:
                copy.assign(value, read_value=False)
        return copy

    def _initial_copy(self, context: DispatchContext) -> tf.Tensor | None:
        """Returns the first value of a copy; None: it has none yet."""
        return None

    def _taker(self) -> Callable[[int, RemoteVariable], None] | None:
        """Returns what keeps a copy's value when its worker is about to leave.

        It must not keep the variable alive. None: nothing has to be kept.
        """
        return None

    def _handle_now(self) -> tf.Tensor:
        if dispatch_context.current() is None:
            return self.own_handle
        return self._resident.get()._handle_now()


class AssignedFlag(WorkerLocalHandle):
    """Flag of each lane that has assigned its copy of a state."""

    def __init__(self, name: str) -> None:
        """Begins with no lane."""
        super().__init__(
            tf.TensorShape([]),
            tf.bool,
            f"{name}/assigned",
            trainable=False,
            per_lane=True,
        )

    def _initial_copy(self, context: DispatchContext) -> tf.Tensor:
        return tf.constant(False)

    def set(self) -> None:
        """Sets the flag of the lane that runs this, at run time."""
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=True)

    def is_set(self, lane_index: int) -> bool:
        """Returns whether the flag of a lane is set."""
        copy = self._resident.existing_by_key().get(lane_index)
        return copy is not None and bool(copy.read_value())

    def forget(self) -> None:
        """Clears the flags of all lanes."""
        self._resident.forget()
