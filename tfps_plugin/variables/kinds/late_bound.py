"""A variable whose handle is looked up when a function is called.

TensorFlow's functions capture the handles of the variables they use, by
value, when they are traced. A handle is bound to one incarnation of one
server, so a traced function is useless once its parameter server has been
replaced. Here a traced function holds a placeholder, and every call asks the
variable for its current handle.
"""

import weakref
from collections.abc import Callable
from typing import Any
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief.chief_reads import on_the_chief
from tfps_plugin.variables.kinds.handle_areas import HandleAreas
from tfps_plugin.variables.kinds.own_handle import OwnHandle
from tfps_plugin.variables.lookup import present_rows
from tfps_plugin.variables.methods import variable_copies
from tfps_plugin.variables.methods.argument_type import SameVariable
from tfps_plugin.variables.methods.resource_changes import ResourceChanges
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates.update_lock import UpdateLock

T = TypeVar("T")


class LateBoundVariable(ResourceChanges):
    """A resource variable that functions do not capture by value.

    Subclasses define the current handle. While an optimizer updates single
    rows, reads and assignments of the variable go through the view that stands
    in for it (`StepTrace.viewing`).
    """

    # tf.Variable's metaclass would offer our arguments to variable creators.
    _variable_call = None

    # Held by updates that read and then assign; None if they are not guarded.
    update_lock: UpdateLock | None = None

    def __init__(
        self,
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
        """Makes the resource on the current device, without a value.

        Args:
            shape: Full static shape.
            dtype: Dtype of the elements.
            name: Name shown to the user, without the `:0`.
            trainable: Whether gradient tapes watch it by themselves.
            synchronization: As in `tf.Variable`.
            aggregation: As in `tf.Variable`.
        """
        handle = compat.uninitialized_handle(shape, dtype, name)
        # ResourceVariable's own constructor insists on an initial value.
        super(compat.ResourceVariable, self).__init__(
            trainable=trainable,
            shape=shape,
            dtype=dtype,
            handle=handle,
            synchronization=synchronization,
            aggregation=aggregation,
            unique_id=f"{name}_{compat.unique_number()}",
            handle_name=name,
            name=name,
            in_graph_mode=False,
        )

    @property
    def _handle(self) -> Any:
        return self._own

    @_handle.setter
    def _handle(self, handle: Any) -> None:
        self._own = (
            handle if isinstance(handle, OwnHandle) else OwnHandle(handle)
        )

    @property
    def is_gone(self) -> bool:
        """True if the connection that it was made on has ended."""
        return self._own.is_gone

    @property
    def own_handle(self) -> tf.Tensor:
        """The handle of the resource that this variable made itself."""
        return self._own.tensor

    def _handle_now(self) -> tf.Tensor:
        """Returns the handle that a call on this thread has to use now."""
        return self.own_handle

    def remake(self) -> None:
        """Makes the resource again, without a value.

        Call it when the task that held the resource was replaced. Functions
        that use the variable find the new resource.
        """
        # Another cluster may have a task of that name.
        device = self.own_handle.device
        with tf.init_scope(), compat.clear_device(), tf.device(device):
            self._handle = compat.uninitialized_handle(
                self._shape, self._dtype, self._handle_name.removesuffix(":0")
            )
        connection.present().part(HandleAreas).handles_have_changed()

    @property
    def handle(self) -> tf.Tensor:
        """In functions, a placeholder; elsewhere the current handle."""
        graph = compat.function_graph()
        if graph is None:
            return self._handle_now()
        if tensorflow_saving.is_saving_model():
            # It tells TensorFlow which variable the SavedModel needs.
            return self.own_handle
        return compat.capture_at_call_time(
            graph,
            self._weakly(type(self)._handle_now),
            compat.LateBoundHandleSpec(
                self.own_handle, self._home, weakref.ref(self)
            ),
            key=("tfps", self._unique_id),
        )

    def __tf_tracing_type__(self, context: Any) -> SameVariable:
        """Returns the type by which functions that take it are traced."""
        del context
        return SameVariable(self)

    def _weakly(
        self, look_up: Callable[[Any], tf.Tensor]
    ) -> Callable[[], tf.Tensor]:
        """Returns a lookup for traced functions that keeps no variable alive.

        As with any `tf.Variable`, the program that calls a function has to
        keep the variables that the function uses.
        """
        reference = weakref.ref(self)
        name = self.name

        def look_up_now() -> tf.Tensor:
            variable = reference()
            if variable is None:
                raise errors.VariableCreationError(
                    f"A function was called that uses the variable {name!r}, "
                    "which does not exist any more. Keep a reference to it, "
                    "such as an attribute of a tf.Module, for as long as the "
                    "function is called."
                )
            return look_up(variable)

        return look_up_now

    @property
    def device(self) -> str:
        """The device that holds the variable, in functions too."""
        return self._own.device

    @property
    def shape(self) -> tf.TensorShape:
        """The static shape."""
        view = StepTrace.current().view_of(self._unique_id)
        return self._shape if view is None else view.shape

    def __repr__(self) -> str:
        if not self._own.is_gone:
            return super().__repr__()
        return (
            f"<tf.Variable {self.name!r} shape={self._shape} "
            f"dtype={self._dtype.name}, of a strategy that has ended>"
        )

    # Under a view, everything below sees and changes only the view's part.

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        view = StepTrace.current().view_of(self._unique_id)
        if view is None:
            if on_the_chief():
                self.finish_steps()
                return self._as_received(super()._read_variable_op(no_copy))
            value = super()._read_variable_op(no_copy)
            return self._as_received(present_rows.present_value(self, value))
        return view.read()

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Looks up rows, as `tf.Variable.sparse_read`."""
        if self._reads_more_than_own():
            return tf.gather(self.read_value(), indices, name=name)
        return super().sparse_read(indices, name)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Looks up elements or slices, as `tf.Variable.gather_nd`."""
        if self._reads_more_than_own():
            return tf.gather_nd(self.read_value(), indices, name=name)
        return super().gather_nd(indices, name)

    def _reads_more_than_own(self) -> bool:
        """True if a view stands in for the resource."""
        return StepTrace.current().view_of(self._unique_id) is not None

    def _as_received(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a value as a reader on another task sees it."""
        return value

    # Reads of the chief.

    def read_value(self) -> tf.Tensor:
        """Returns the value, as of this point of the program."""
        return self._read_on_chief(super().read_value)

    def value(self) -> tf.Tensor:
        """Returns the value; on the chief, a copy in this process.

        Keras turns some variables into constants. A constant on a ps would be
        lost with the ps.
        """
        if not on_the_chief():
            return super().value()
        read_once = super().value
        return self._read_on_chief(lambda: tf.identity(read_once()))

    def numpy(self) -> np.ndarray:
        """Returns the value as an array in this process."""
        return self._read_on_chief(super().numpy)

    def _read_on_chief(
        self, read_once: Callable[[], T], shape: Any = None
    ) -> T:
        """Reads the value, or a part of it of another shape."""
        if not on_the_chief():
            # In a closure, the coordinator handles TensorFlow's own error, and
            # runs the closure again where that helps.
            return read_once()
        self._own.require()
        # Also for reads that do not use `_read_variable_op`.
        self.finish_steps()
        try:
            return chief_reads.read(
                lambda: chief_reads.require_shape(
                    read_once(), self._shape if shape is None else shape
                )
            )
        except tf.errors.OpError as error:
            if not chief_reads.is_about_the_cluster(error):
                raise
            raise errors.ParameterServerLostError(
                f"The variable {self.name!r} cannot be read: the task that "
                f"holds it does not answer. Received: device={self.device!r}, "
                f"{type(error).__name__}. See that the task runs, start the "
                "chief again and go on from the last checkpoint."
            ) from error

    # Copies.

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return variable_copies.deep(self, memo)

    def __reduce__(self) -> Any:
        return variable_copies.reduced(self)

    # For TensorFlow's checkpoints, which read later, by the handle.

    def _serialize_to_tensors(self) -> Any:
        self.finish_steps()
        return super()._serialize_to_tensors()

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        self.finish_steps()
        super()._copy_trackable_to_cpu(object_map)
