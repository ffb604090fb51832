"""Which worker the current thread is dispatching to.

The coordinator drives every worker from a few threads, its *lanes*. While a
lane runs a closure, everything that must differ from worker to worker (metric
copies, seeds, lookup tables, iterators) asks here where it is.
"""

import contextlib
import threading
from typing import Any
from typing import NamedTuple

from tfps_plugin import errors
from tfps_plugin.cluster.calls.present_call import PresentCall
from tfps_plugin.cluster.calls.turns import Turns

_thread_local = threading.local()


class DispatchContext(NamedTuple):
    """Where the closure of the current thread runs.

    Attributes:
        worker_index: Index of the worker task.
        lane_index: Index of the lane among all lanes of all workers. Two
            closures that run at the same time never share it.
        generation: How often this worker has been admitted to the cluster;
            whatever was built on an earlier generation is gone.
        device: Full name of the device that closures are placed on.
        turns: Of the threads that drive this worker; None: there is but one.
        num_changes: Another number whenever the cluster has changed: then
            TensorFlow prepares functions on all workers anew.
        call: Who wants to know what the present call needs; None: nobody.
        cancellation: Ends the calls of this thread once it is started; None:
            nothing does.
    """

    worker_index: int
    lane_index: int
    generation: int
    device: str
    turns: Turns | None = None
    num_changes: int = 0
    call: PresentCall | None = None
    cancellation: Any = None

    @property
    def cpu_device(self) -> str:
        """Full name of the CPU of the worker, whatever `device` is."""
        return self.device.rsplit("/device:", 1)[0] + "/device:CPU:0"

    @property
    def counted_by(self) -> object:
        """Stands for the coordinator whose count `generation` is."""
        return self.turns


def dispatching(
    context: DispatchContext,
) -> contextlib.AbstractContextManager[None]:
    """Declares that this thread dispatches to `context` until it leaves."""
    return _Dispatching(context)


class _Dispatching:
    # Not a generator: this is done for every function that is scheduled.

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
    """The dispatch context of this thread; None on the chief's own threads."""
    return getattr(_thread_local, "context", None)


def required() -> DispatchContext:
    """The dispatch context of this thread, a lane's.

    Raises:
        InternalError: If this thread dispatches to no worker.
    """
    context = current()
    if context is None:
        raise errors.InternalError(
            "An object that lives on workers was asked for on a thread that "
            "dispatches to no worker. Please report this."
        )
    return context
