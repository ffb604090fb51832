"""Values per worker, each built on its worker on first use."""

from collections.abc import Callable
from typing import Any

from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident


class PerWorkerValues:
    """One value for each worker, such as an iterator.

    It is passed to `ClusterCoordinator.schedule` as an argument, or inside
    one; each closure gets the value of the worker that it runs on. A worker's
    value is built on that worker for its first closure, and built again after
    the worker was lost and came back.

    Threading: safe from several threads. All closures on a worker share its
    value.
    """

    def __init__(
        self,
        build: Callable[[DispatchContext], Any],
        *,
        type_spec: Any = None,
    ) -> None:
        """Creates the values; builds none yet.

        Args:
            build: Builds one worker's value; called on a lane's thread, with
                that worker's device as the current one.
            type_spec: Type of each value for `tf.function`: a `tf.TypeSpec`,
                or a nested structure of them. Without it the values can be
                passed only to plain Python callables.
        """
        self._resident: WorkerResident[Any] = WorkerResident(
            build, per_lane=False
        )
        self._type_spec = type_spec

    @property
    def type_spec(self) -> Any:
        """Type of each value for `tf.function`; None if unknown."""
        return self._type_spec

    def current(self) -> Any:
        """Returns the value of the worker that this thread dispatches to.

        Raises:
            InternalError: If this thread dispatches to no worker.
        """
        return self._resident.get()
