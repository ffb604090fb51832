"""The index of the worker that runs a function."""

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident


class WorkerIndex:
    """The index of the calling worker, as a tensor of that worker.

    Threading: safe from any thread.
    """

    def __init__(self) -> None:
        """Begins without tensors; each worker gets one when it needs it."""
        self._index: WorkerResident[tf.Tensor] = WorkerResident(
            _index_on_worker, per_lane=False
        )

    def in_function(self) -> tf.Tensor:
        """Returns the index, an int32 scalar; for use in a function."""
        index = compat.capture_at_call_time(
            compat.function_graph(),
            self._index.get,
            compat.LateBoundHandleSpec(tf.TensorSpec([], tf.int32)),
            key=("tfps-worker-index", id(self)),
        )
        return compat.in_graph(index, tf.compat.v1.get_default_graph())


def _index_on_worker(context: DispatchContext) -> tf.Tensor:
    with tf.init_scope(), compat.clear_device():
        with tf.device(graph_checks.CPU):
            index = tf.constant(context.worker_index)
        with tf.device(context.cpu_device):
            return tf.identity(index)
