"""Metric states of lanes, fetched by the chief at once."""

import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.chief import connection
from tfps_plugin.training.steps.metrics import counted_sums
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief import worker_fetches
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.per_worker.worker_resident import Residents
from tfps_plugin.variables.states import merging
from tfps_plugin.variables.states.merge_rule import MergeRule

_logger = logging.getLogger("tfps_plugin.training")


class LaneSums:
    """Merges the lanes' copies of metric states into the chief's values.

    Read one by one, each state would cost a message from every lane. Reset one
    by one, each would be recreated on every lane when the next epoch begins.
    Here a lane sends all of them at once, and clears all of them at once.

    Threading: only the thread that runs `fit` uses it.
    """

    def __init__(self, model: keras.Model) -> None:
        """Takes the model, whose metrics may be created later.

        Args:
            model: The model that has the metrics.
        """
        self._model = model
        self._functions: dict[Any, _Functions] = {}

    def collect(self) -> None:
        """Fetches and clears the copies; only call it while no call runs.

        The counts of a worker that does not answer are lost.
        """
        # A worker may leave meanwhile, and what it has counted be taken over.
        with connection.present().part(Residents).taking_over:
            self._collect()

    def _collect(self) -> None:
        of_lanes: dict[int, list[tuple[WorkerLocalVariable, Any]]] = {}
        for variable in counted_sums.countable_states(self._model):
            for lane_index, copy in variable.copies_by_lane().items():
                of_lanes.setdefault(lane_index, []).append((variable, copy))
            # Set before they are: a lane that arrives in between resets it.
            variable.copies_are_neutral()
        for lane_index, pairs in sorted(of_lanes.items()):
            self._take_over(lane_index, pairs)

    def _take_over(
        self, lane_index: int, pairs: Sequence[tuple[WorkerLocalVariable, Any]]
    ) -> None:
        """Merges a lane's copies into the chief's values, and clears them."""
        copies = [copy for _, copy in pairs]
        functions = self._functions_for([v for v, _ in pairs], copies)
        try:
            values = functions.read(copies)
        except tf.errors.OpError as error:
            if not chief_reads.is_about_the_cluster(error):
                raise
            _logger.warning(
                "A worker does not answer; what it has counted since its "
                "metrics were last read or reset is missing. Received: %s",
                str(error).partition("\n")[0],
            )
            self._forget(lane_index, pairs)
            return
        for (variable, _), value in zip(pairs, values, strict=True):
            variable.take_over(value)
        try:
            functions.clear(copies)
        except tf.errors.OpError as error:
            if not chief_reads.is_about_the_cluster(error):
                raise
            # Their values are already here.
            self._forget(lane_index, pairs)

    def _forget(
        self, lane_index: int, pairs: Sequence[tuple[WorkerLocalVariable, Any]]
    ) -> None:
        for variable, _ in pairs:
            variable.forget_copy(lane_index)

    def _functions_for(
        self,
        variables: Sequence[WorkerLocalVariable],
        copies: Sequence[RemoteVariable],
    ) -> "_Functions":
        key = tuple((v.rule, v.dtype, tuple(v.shape)) for v in variables)
        if key not in self._functions:
            self._functions[key] = _Functions(
                copies, [variable.rule for variable in variables]
            )
        return self._functions[key]


class _Functions:
    """Reads and clears the copies of any lane, in one call each.

    Reading changes nothing, so it can be retried.
    """

    def __init__(
        self, copies: Sequence[RemoteVariable], rules: Sequence[MergeRule]
    ) -> None:
        """Traces the functions.

        Args:
            copies: Copies of one lane; those of other lanes are alike.
            rules: The merge rule of each.
        """
        self._rules = list(rules)
        self._dtypes = [copy.dtype for copy in copies]
        self._shapes = [copy.shape for copy in copies]
        # Under no device: one trace for all workers.
        with compat.clear_device():
            self._read, self._clear = (
                tf.function(
                    function,
                    input_signature=[tf.TensorSpec([], tf.resource)]
                    * len(copies),
                    autograph=False,
                ).get_concrete_function()
                for function in (self._reading, self._clearing)
            )

    def _reading(self, *handles: tf.Tensor) -> list[tf.Tensor]:
        """Returns the values, concatenated to a vector for each dtype."""
        parts: dict[tf.DType, list[tf.Tensor]] = {}
        for handle, dtype in zip(handles, self._dtypes, strict=True):
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            parts.setdefault(dtype, []).append(tf.reshape(value, [-1]))
        return [tf.concat(of_one, 0) for of_one in parts.values()]

    def _clearing(self, *handles: tf.Tensor) -> tf.Tensor:
        for handle, rule, dtype, shape in zip(
            handles, self._rules, self._dtypes, self._shapes, strict=True
        ):
            tf.raw_ops.AssignVariableOp(
                resource=handle,
                value=merging.neutral(rule, shape, dtype),
            )
        return tf.constant(0)

    def read(self, copies: Sequence[RemoteVariable]) -> list[np.ndarray]:
        """Returns the values of a lane's copies."""

        def read() -> list[np.ndarray]:
            return worker_fetches.arrays(_on(copies, self._read))

        left = dict(
            zip(
                dict.fromkeys(self._dtypes),
                chief_reads.read(read),
                strict=True,
            )
        )
        values = []
        for dtype, shape in zip(self._dtypes, self._shapes, strict=True):
            size = shape.num_elements()
            values.append(left[dtype][:size].reshape(shape.as_list()))
            left[dtype] = left[dtype][size:]
        return values

    def clear(self, copies: Sequence[RemoteVariable]) -> None:
        """Resets a lane's copies to neutral elements."""
        _on(copies, self._clear)


def _on(copies: Sequence[RemoteVariable], function: Any) -> Any:
    """Calls a function of handles on the device of the copies."""
    with compat.clear_device(), tf.device(copies[0].device):
        return function(*[copy.own_handle for copy in copies])
