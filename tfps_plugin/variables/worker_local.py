"""Variables of which every lane has its own copy: metrics and seeds.

A metric state on a parameter server would be read and assigned by all workers
at once, and lose what they add in between; Keras writes
`state.assign(state + x)`. A copy of its own for every lane is exact, and
costs no message at all. The chief adds the copies up when it reads.

A seed must differ from worker to worker, or two of them draw the same dropout
mask.
"""

import logging
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.cluster import dispatch_context
from tfps_plugin.cluster.dispatch_context import DispatchContext
from tfps_plugin.variables.late_bound import LateBoundVariable
from tfps_plugin.variables.late_bound import on_the_chief
from tfps_plugin.variables.remote_variable import RemoteVariable
from tfps_plugin.variables.worker_resident import WorkerResident

_logger = logging.getLogger(__name__)

# Seeds of neighbouring lanes are this far apart: a prime, so that the
# arithmetic of Keras's own seed generator does not make them meet.
_SEED_STRIDE = 1_000_003


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
            _cpu_of(context.device),
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

    What the chief reads is its own value plus the copies of all lanes; what
    the chief assigns replaces them all. The copies of a worker that was lost
    are gone: what it had counted since the last reset is not in the sum.

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
            initial_value: Value on the chief; copies of lanes start at zero.
            name: Name shown to the user.
            synchronization: As in `tf.Variable`.
            aggregation: As in `tf.Variable`.
        """
        super().__init__(
            initial_value.shape,
            initial_value.dtype,
            name,
            trainable=False,
            per_lane=True,
            synchronization=synchronization,
            aggregation=aggregation,
        )
        self.assign(initial_value)

    def _build_copy(self, context: DispatchContext) -> RemoteVariable:
        copy = super()._build_copy(context)
        with tf.device(_cpu_of(context.device)):
            copy.assign(self._initial_copy(context))
        return copy

    def _initial_copy(self, context: DispatchContext) -> tf.Tensor:
        return tf.zeros(self._shape, self._dtype)

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        value = super()._read_variable_op(no_copy)
        if not on_the_chief():
            return value
        return self._add_copies(value)

    def _add_copies(self, value: tf.Tensor) -> tf.Tensor:
        for copy in self._resident.existing():
            try:
                value = value + copy.read_value()
            except errors.ParameterServerLostError:
                # Not a ps: a copy is on the worker that adds to it.
                _logger.warning(
                    "A worker died before its share of %s was read; what it "
                    "counted since the last reset is missing.",
                    self.name,
                )
        return value

    def assign(
        self,
        value: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Assigns this lane's copy; on the chief, the value of all."""
        if on_the_chief():
            self._resident.forget()
        return super().assign(value, use_locking, name, read_value)


class WorkerLocalSeed(WorkerLocalVariable):
    """The state of a random seed generator: every lane has its own sequence.

    The first lane's is the one that a single process would draw from, so that
    a run with one lane reproduces a run without a cluster.
    """

    def _initial_copy(self, context: DispatchContext) -> tf.Tensor:
        state = compat.read_resource(self.own_handle, self._dtype)
        stride = tf.one_hot(0, state.shape[0], dtype=state.dtype)
        return state + stride * context.lane_index * _SEED_STRIDE

    def _add_copies(self, value: tf.Tensor) -> tf.Tensor:
        return value


def _cpu_of(device: str) -> str:
    """The CPU of the task that `device` belongs to."""
    return device.rsplit("/device:", 1)[0] + "/device:CPU:0"
