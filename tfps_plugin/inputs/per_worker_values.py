"""One value per worker, built there when first needed."""

from collections.abc import Callable
from typing import Any

from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident


class PerWorkerValues:
    """A value that every worker has its own of, such as an iterator.

    Given to `ClusterCoordinator.schedule` as an argument, or anywhere inside
    one, each closure gets the value of the worker that it runs on. A worker's
    value is built on it when its first closure needs it, and built again
    after the worker was lost and came back.

    Threading: safe from several threads; a worker's value is shared by all
    closures that run on that worker.
    """

    def __init__(
        self,
        build: Callable[[DispatchContext], Any],
        *,
        type_spec: Any = None,
    ) -> None:
        """Creates the values; builds none yet.

        Args:
            build: Makes one worker's value; called on a lane's thread under
                that worker's device.
            type_spec: What each value looks like to `tf.function`: a
                `tf.TypeSpec`, or a nested structure of them. Without one the
                values can be given to plain Python callables only.
        """
        self._resident: WorkerResident[Any] = WorkerResident(
            build, per_lane=False
        )
        self._type_spec = type_spec

    @property
    def type_spec(self) -> Any:
        """What each value looks like to `tf.function`; None if unknown."""
        return self._type_spec

    def current(self) -> Any:
        """The value of the worker that this thread dispatches to.

        Raises:
            InternalError: If this thread dispatches to no worker.
        """
        return self._resident.get()
