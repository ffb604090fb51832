"""What lanes have added to metric states, brought to the chief at once."""

import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.variables.remote_variable import RemoteVariable
from tfps_plugin.variables.worker_local import WorkerLocalVariable

_logger = logging.getLogger(__name__)


class LaneSums:
    """Adds the copies that lanes have of metric states to the chief's own.

    Read one by one, each state would cost a message from every lane; and
    reset, each would be made again on every lane when the next epoch begins.
    Here a lane is asked once for all of them, and sets its copies to zero as
    it answers.

    Threading: used by the thread that runs `fit` alone.
    """

    def __init__(self, model: keras.Model) -> None:
        """Takes the model, whose metrics may be made later.

        Args:
            model: The model whose metrics' states are meant.
        """
        self._model = model
        self._takers: dict[Any, Any] = {}

    def collect(self) -> None:
        """Brings them; to be called when no call of a worker runs.

        What a worker that does not answer had counted is missing.
        """
        of_lanes: dict[int, list[tuple[WorkerLocalVariable, Any]]] = {}
        variables = [
            variable.value
            for variable in self._model.metrics_variables
            if isinstance(variable.value, WorkerLocalVariable)
            and variable.value.is_sum
        ]
        for variable in variables:
            for lane_index, copy in variable.copies_by_lane().items():
                of_lanes.setdefault(lane_index, []).append((variable, copy))
        for lane_index, copies in sorted(of_lanes.items()):
            try:
                taken = self._take([copy for _, copy in copies])
            except tf.errors.OpError as error:
                _logger.warning(
                    "A worker does not answer; what it has counted since the "
                    "last reset of the metrics is missing. Received: %s",
                    str(error).partition("\n")[0],
                )
                for variable, _ in copies:
                    variable.forget_copy(lane_index)
                continue
            for (variable, _), value in zip(copies, taken, strict=True):
                variable.take_over(value)
        for variable in variables:
            variable.copies_are_zero()

    def _take(self, copies: Sequence[RemoteVariable]) -> list[np.ndarray]:
        """The values of a lane's copies, which are zero afterwards."""
        key = tuple((copy.dtype, tuple(copy.shape)) for copy in copies)
        if key not in self._takers:
            self._takers[key] = _taker(copies)
        with compat.clear_device(), tf.device(copies[0].device):
            packed = self._takers[key](*[copy.own_handle for copy in copies])
        by_dtype = dict(
            zip(_dtypes(copies), [p.numpy() for p in packed], strict=True)
        )
        values = []
        for copy in copies:
            size = copy.shape.num_elements()
            value, by_dtype[copy.dtype] = np.split(by_dtype[copy.dtype], [size])
            values.append(value.reshape(copy.shape.as_list()))
        return values


def _taker(copies: Sequence[RemoteVariable]) -> Any:
    """A function of handles that packs and clears what they refer to."""
    dtypes = [copy.dtype for copy in copies]
    shapes = [copy.shape for copy in copies]

    def take(*handles: tf.Tensor) -> list[tf.Tensor]:
        parts: dict[tf.DType, list[tf.Tensor]] = {}
        for handle, dtype in zip(handles, dtypes, strict=True):
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            parts.setdefault(dtype, []).append(tf.reshape(value, [-1]))
        packed = [tf.concat(of_one, 0) for of_one in parts.values()]
        with tf.control_dependencies(packed):
            for handle, dtype, shape in zip(
                handles, dtypes, shapes, strict=True
            ):
                tf.raw_ops.AssignVariableOp(
                    resource=handle, value=tf.zeros(shape, dtype)
                )
        return packed

    # Under no device: one trace for all workers.
    with compat.clear_device():
        return tf.function(
            take,
            input_signature=[tf.TensorSpec([], tf.resource)] * len(copies),
            autograph=False,
        ).get_concrete_function()


def _dtypes(copies: Sequence[RemoteVariable]) -> list[tf.DType]:
    """Each dtype once, in the order of `_taker`."""
    return list(dict.fromkeys(copy.dtype for copy in copies))
