"""Variables of which each worker has its own, and which are never merged.

`tf.Variable(value, per_worker_variable=True)` under the scope of a strategy
gives one, as under `tf.distribute.ParameterServerStrategy`.
"""

from collections.abc import Callable
from collections.abc import Iterable

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.initial_values.initialization import InitialValue
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalHandle


class PerWorkerVariable(WorkerLocalHandle):
    """A variable that each worker, and the chief, has for itself.

    In a function, and in a Python callable that a worker runs, it is that
    worker's own: reads and assignments cost no message. On the chief it is the
    chief's own; `read_all` fetches those of all workers. Gradient tapes do not
    watch it.

    A worker's variable starts with the initial value when the worker first
    uses it, and again after the worker was lost and came back.

    Threading: the functions that one worker runs at the same time share it;
    single operations, such as `assign_add`, are atomic.
    """

    def __init__(
        self,
        initial_value: InitialValue,
        name: str,
        worker_indices: Callable[[], Iterable[int]],
    ) -> None:
        """Makes the chief's own; the workers' are made when needed.

        Args:
            initial_value: Made on each worker, for that worker.
            name: Name shown to the user.
            worker_indices: Returns the indices of the workers of the cluster.
        """
        self._described = initial_value
        self._worker_indices = worker_indices
        super().__init__(
            initial_value.shape, initial_value.dtype, name, trainable=False
        )
        with compat.clear_device(), tf.device("/device:CPU:0"):
            self._first = initial_value.make()
        self.assign(self._first)

    def _build_copy(self, context: DispatchContext) -> RemoteVariable:
        with tf.init_scope(), compat.clear_device():
            copy = super()._build_copy(context)
            with tf.device(copy.device):
                copy.assign(self._described.make(), read_value=False)
        return copy

    def read_all(self) -> list[tf.Tensor]:
        """Returns the values of all workers, in their order.

        For a worker that has not used the variable yet, it is the initial
        value of the chief's own.

        Returns:
            One tensor for each worker.

        Raises:
            ParameterServerLostError: If a worker that has one does not
                answer.
        """
        copies = self._resident.existing_by_key()
        return [
            copies[index].value() if index in copies else self._first
            for index in self._worker_indices()
        ]
