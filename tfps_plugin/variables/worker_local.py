"""Variables of which every lane has its own copy: metric states.

A metric state on a parameter server would be read and assigned by all workers
at once, and lose what they add in between; Keras writes
`state.assign(state + x)`. A copy of its own for every lane is exact, and
costs no message at all. The chief adds the copies up when it reads.

How the copies are put together says the variable's `aggregation`, as it does
under TensorFlow's other strategies; every state of Keras's own metrics is a
sum.
"""

import functools
import logging
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_saving
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.cluster import dispatch_context
from tfps_plugin.cluster.dispatch_context import DispatchContext
from tfps_plugin.variables.late_bound import LateBoundVariable
from tfps_plugin.variables.late_bound import on_the_chief
from tfps_plugin.variables.remote_variable import RemoteVariable
from tfps_plugin.variables.worker_resident import WorkerResident

_logger = logging.getLogger(__name__)


class WorkerLocalHandle(LateBoundVariable):
    """A resource that resolves to the calling worker's own.

    On the chief's own threads it is a resource of the chief; in a closure it
    is one of the worker, so that passing it costs no message.
    """

    def __init__(
        self,
        shape: tf.TensorShape,
        dtype: tf.DType,
        name: str,
        *,
        trainable: bool,
        per_lane: bool = False,
        synchronization: tf.VariableSynchronization = (
            tf.VariableSynchronization.AUTO
        ),
        aggregation: tf.VariableAggregation = tf.VariableAggregation.NONE,
    ) -> None:
        """Makes the chief's own resource; the workers' are made when needed.

        Args:
            shape: Full static shape.
            dtype: Dtype of the elements.
            name: Name shown to the user.
            trainable: Whether gradient tapes watch it by themselves.
            per_lane: Whether each lane has its own, or each worker.
            synchronization: As in `tf.Variable`.
            aggregation: As in `tf.Variable`.
        """
        with compat.clear_device(), tf.device("/device:CPU:0"):
            super().__init__(
                shape,
                dtype,
                name,
                trainable=trainable,
                synchronization=synchronization,
                aggregation=aggregation,
            )
        self._resident: WorkerResident[RemoteVariable] = WorkerResident(
            self._build_copy, per_lane=per_lane
        )

    def _build_copy(self, context: DispatchContext) -> RemoteVariable:
        return RemoteVariable(
            context.cpu_device,
            self._shape,
            self._dtype,
            self._handle_name.removesuffix(":0"),
            trainable=False,
        )

    def _handle_now(self) -> tf.Tensor:
        if dispatch_context.current() is None:
            return self.own_handle
        return self._resident.get()._handle_now()


class WorkerLocalVariable(WorkerLocalHandle):
    """A metric state: every lane adds to its own copy, exactly.

    What the chief reads depends on the aggregation:

    - `SUM`: its own value plus the copies of all lanes, which start at zero.
      Of booleans: whether any is true;
    - `MEAN`: the mean of the copies of the lanes that took part since the
      last assignment, which start at the chief's value; that value itself if
      none did;
    - `ONLY_FIRST_REPLICA`: likewise, but the copy of the first such lane.

    What the chief assigns replaces them all. The copies of a worker that was
    lost are gone: what it had counted since they were last brought to the
    chief, or dropped, is not in the sum.

    Threading: a lane runs one closure at a time and nobody else touches its
    copy. The chief's reads are exact when no closure is running.
    """

    def __init__(
        self,
        initial_value: tf.Tensor,
        name: str,
        *,
        synchronization: tf.VariableSynchronization = (
            tf.VariableSynchronization.ON_READ
        ),
        aggregation: tf.VariableAggregation = tf.VariableAggregation.SUM,
    ) -> None:
        """Makes the chief's own part, with `initial_value`.

        Args:
            initial_value: Value on the chief.
            name: Name shown to the user.
            synchronization: As in `tf.Variable`.
            aggregation: How the chief puts the copies together.

        Raises:
            VariableCreationError: If it is not said how, or values of that
                dtype have no mean.
        """
        _check_aggregation(
            initial_value.dtype, name, synchronization, aggregation
        )
        super().__init__(
            initial_value.shape,
            initial_value.dtype,
            name,
            trainable=False,
            per_lane=True,
            synchronization=synchronization,
            aggregation=aggregation,
        )
        self._are_zero = False
        self.assign(initial_value)

    def _build_copy(self, context: DispatchContext) -> RemoteVariable:
        copy = super()._build_copy(context)
        with tf.device(context.cpu_device):
            copy.assign(self._initial_copy(context))
        return copy

    def _handle_now(self) -> tf.Tensor:
        if not on_the_chief():
            self._are_zero = False
        return super()._handle_now()

    def _initial_copy(self, context: DispatchContext) -> tf.Tensor:
        if self.is_sum:
            return tf.zeros(self._shape, self._dtype)
        return compat.read_resource(self.own_handle, self._dtype)

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        value = super()._read_variable_op(no_copy)
        if not on_the_chief():
            return value
        return self._put_together(value, self._read_copies())

    def _read_copies(self) -> list[tf.Tensor]:
        """The copies of lanes, in the order of lanes."""
        values = []
        for copy in self.copies_by_lane().values():
            try:
                values.append(copy.read_value())
            except errors.ParameterServerLostError:
                # Not a ps: a copy is on the worker that adds to it.
                _logger.warning(
                    "A worker died before its share of %s was read; what it "
                    "counted since the last reset is missing.",
                    self.name,
                )
        return values

    def _put_together(
        self, own: tf.Tensor, copies: list[tf.Tensor]
    ) -> tf.Tensor:
        """What the chief sees.

        Args:
            own: The chief's own value.
            copies: Those of lanes.
        """
        if self.is_sum:
            add = tf.logical_or if self._dtype == tf.bool else tf.add
            return functools.reduce(add, copies, own)
        if not copies:
            return own
        if self.aggregation == tf.VariableAggregation.MEAN:
            return tf.add_n(copies) / len(copies)
        return copies[0]

    def _reads_more_than_own(self) -> bool:
        return on_the_chief() or super()._reads_more_than_own()

    def gather_own_value(self) -> None:
        """On the chief: replaces the copies by what they are together."""
        if on_the_chief():
            self.assign(self.read_value())

    def _serialize_to_tensors(self) -> dict[str, Any]:
        """As TensorFlow's checkpoints save any variable: the value of all."""

        def read() -> tf.Tensor:
            # Checkpoints are written by a function that is traced each time.
            with tf.init_scope():
                return tf.constant(self.numpy())

        value = tensorflow_saving.deferred_read(read, self._dtype, self.device)
        return {tensorflow_saving.VARIABLE_VALUE_KEY: value}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        """As TensorFlow's checkpoints restore any variable."""
        # What is restored is the value of all.
        self._resident.forget()
        return super()._restore_from_tensors(restored_tensors)

    def assign(
        self,
        value: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Assigns this lane's copy; on the chief, the value of all."""
        if on_the_chief():
            # Of the value now, which may be computed from the copies.
            value = tf.convert_to_tensor(value, self._dtype)
            if not self._are_zero:
                self._resident.forget()
        return super().assign(value, use_locking, name, read_value)

    def assign_add(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Adds to this lane's copy; on the chief, to the value of all."""
        if on_the_chief() and not self.is_sum:
            value = self.read_value() + tf.convert_to_tensor(delta, self._dtype)
            return self.assign(value, use_locking, name, read_value)
        return super().assign_add(delta, use_locking, name, read_value)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtracts likewise."""
        if on_the_chief() and not self.is_sum:
            value = self.read_value() - tf.convert_to_tensor(delta, self._dtype)
            return self.assign(value, use_locking, name, read_value)
        return super().assign_sub(delta, use_locking, name, read_value)

    @property
    def is_sum(self) -> bool:
        """Whether the chief adds the copies up."""
        return self.aggregation == tf.VariableAggregation.SUM

    def forget_copies(self) -> None:
        """Drops what lanes have added; each begins anew when it next adds."""
        self._resident.forget()

    # What brings the copies of many variables at once; of sums alone.

    def copies_by_lane(self) -> dict[int, RemoteVariable]:
        """The copies that lanes have; none if all are known to be zero."""
        return {} if self._are_zero else self._resident.existing_by_key()

    def forget_copy(self, lane_index: int) -> None:
        """Drops what one lane has added."""
        self._resident.forget_key(lane_index)

    def take_over(self, value: Any) -> None:
        """On the chief: adds the value of a copy, which is to be cleared."""
        with compat.clear_device(), tf.device(self.device):
            own = compat.read_resource(self.own_handle, self._dtype)
            total = own | value if self._dtype == tf.bool else own + value
            tf.raw_ops.AssignVariableOp(resource=self.own_handle, value=total)

    def copies_are_zero(self) -> None:
        """Says that all copies are zero, until a lane asks for its own."""
        self._are_zero = True


def _check_aggregation(
    dtype: tf.DType,
    name: str,
    synchronization: tf.VariableSynchronization,
    aggregation: tf.VariableAggregation,
) -> None:
    on_read = synchronization == tf.VariableSynchronization.ON_READ
    if on_read and aggregation == tf.VariableAggregation.NONE:
        raise errors.VariableCreationError(
            f"Every worker has its own copy of the variable {name!r}, and "
            "nothing says what their value is together. Expected an "
            "aggregation of SUM, MEAN or ONLY_FIRST_REPLICA with "
            f"synchronization=ON_READ. Received: aggregation={aggregation}"
        )
    if aggregation == tf.VariableAggregation.MEAN and not dtype.is_floating:
        raise errors.VariableCreationError(
            f"The variable {name!r} has a copy on every worker, whose mean "
            "is not a value of its dtype. Received: aggregation=MEAN, "
            f"dtype={dtype.name}. Use a floating dtype, or SUM."
        )
