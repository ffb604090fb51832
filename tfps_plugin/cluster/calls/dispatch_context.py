"""Context of a thread that drives a worker.

The coordinator drives every worker from a few threads, its *lanes*. While a
lane runs a closure, everything that differs from worker to worker (copies of
metrics, seeds, lookup tables, iterators) finds its worker here.
"""

import contextlib
import threading
from collections.abc import Collection
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple
from typing import Protocol

from tfps_plugin import errors
from tfps_plugin.cluster.calls.worker_calls import InFlightCall
from tfps_plugin.cluster.calls.worker_calls import WorkerCalls

_thread_local = threading.local()


class OtherWorkers(Protocol):
    """Workers that a closure needs besides the one that runs it."""

    def require(self, workers: Collection[int]) -> dict[int, int]:
        """Keeps workers until the closure has ended, or `release`.

        Args:
            workers: Their indices.

        Returns:
            Their generations.

        Raises:
            Exception: If one is away, or not to be had.
        """

    def release(self) -> None:
        """Lets the workers leave the cluster."""


class DispatchContext(NamedTuple):
    """The worker and lane that the current thread's closure runs on.

    Attributes:
        worker_index: Index of the worker task.
        lane_index: Index of the lane among all lanes of all workers. Two
            closures that run at the same time never share it.
        generation: Number of times this worker was readmitted to the cluster;
            whatever was built in an earlier generation is gone.
        device: Full name of the device that closures are placed on.
        worker_calls: The calls of all lanes of this worker; None: it has only
            one lane.
        num_changes: A number that differs after every change of the cluster;
            TensorFlow then prepares functions on all workers anew.
        call: Records what the call in flight needs; None: not recorded.
        cancellation: Ends the calls of this thread once it is started; None:
            nothing does.
        other_workers: Those that the calls of the closure need; None: nobody
            knows.
    """

    worker_index: int
    lane_index: int
    generation: int
    device: str
    worker_calls: WorkerCalls | None = None
    num_changes: int = 0
    call: InFlightCall | None = None
    cancellation: Any = None
    other_workers: OtherWorkers | None = None

    @property
    def cpu_device(self) -> str:
        """Full name of the worker's CPU, also if `device` is a GPU."""
        return self.device.rsplit("/device:", 1)[0] + "/device:CPU:0"

    @property
    def counted_by(self) -> object:
        """Stands for the coordinator whose count `generation` is."""
        return self.worker_calls


def dispatching(
    context: DispatchContext,
) -> contextlib.AbstractContextManager[None]:
    """Returns a context manager that sets the context of this thread."""
    return _Dispatching(context)


class _Dispatching:
    # Not a generator, because this runs for every scheduled function.

    __slots__ = ("_context", "_previous")

    def __init__(self, context: DispatchContext) -> None:
        self._context = context
        self._previous: DispatchContext | None = None

    def __enter__(self) -> None:
        self._previous = current()
        _thread_local.context = self._context

    def __exit__(self, *_: object) -> None:
        _thread_local.context = self._previous


def current() -> DispatchContext | None:
    """Returns this thread's context; None if it is not a lane's thread."""
    return getattr(_thread_local, "context", None)


@contextlib.contextmanager
def cancelled_by(cancellation: Any) -> Iterator[None]:
    """Sets the cancellation of calls of this thread, which drives no worker.

    Args:
        cancellation: It has the method `new_manager` of
            `cancelled_calls.PartOfConnection`.
    """
    _thread_local.cancellation = cancellation
    try:
        yield
    finally:
        _thread_local.cancellation = None


def cancellation_of_thread() -> Any:
    """Returns what `cancelled_by` has set on this thread; None: nothing."""
    return getattr(_thread_local, "cancellation", None)


def required() -> DispatchContext:
    """Returns the context of this thread, which must be a lane's.

    Raises:
        InternalError: If this thread drives no worker.
    """
    context = current()
    if context is None:
        raise errors.InternalError(
            "An object that lives on workers was used on a thread that drives "
            "no worker; expected the thread of a lane. Please report this."
        )
    return context
