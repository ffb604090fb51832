"""Cancellation of calls of functions, by the thread that makes them."""

import functools
import threading
from collections.abc import Callable
from typing import Any

from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.chief import connection


def manager_of_thread(original: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a `cancellation.context` that asks the calling thread.

    Every call of a function asks for the manager that cancels it. A call that
    a lane makes ends with the round of its closure; one that the chief's own
    threads make, with the connection to the cluster. TensorFlow waits for both
    before it connects to another cluster, in C++ and with all of Python's
    threads standing still: no deadline could end that.
    """

    @functools.wraps(original)
    def context() -> Any:
        found = _of_this_thread()
        if found is None:
            return original()
        manager = found.new_manager()
        dispatched = dispatch_context.current()
        if dispatched is not None and dispatched.call is not None:
            dispatched.call.cancelled_by(manager)
        return manager

    return context


def _of_this_thread() -> Any:
    """Returns what cancels this thread's calls; None: TensorFlow decides."""
    context = dispatch_context.current()
    if context is None:
        return (
            dispatch_context.cancellation_of_thread()
            or connection.present().cancellation
        )
    return context.cancellation


class PartOfConnection:
    """Cancels some of the calls that end with the connection, before that.

    Guarded by `_lock`: the managers, whether it was started.
    Never call while holding the lock: TensorFlow.
    """

    def __init__(self) -> None:
        """Begins without calls."""
        # The end of the connection, if there is one, cancels them, too.
        self._all: Any = (
            connection.present().cancellation
            or tensorflow_execution.Cancellation()
        )
        self._lock = threading.Lock()
        self._is_started = False
        self._managers: list[Any] = []

    def new_manager(self) -> Any:
        """Returns the manager of the next call."""
        manager = self._all.new_manager()
        with self._lock:
            self._managers.append(manager)
            is_started = self._is_started
        if is_started:
            manager.start_cancel()
        return manager

    def start(self) -> None:
        """Cancels the calls, and those that begin later."""
        with self._lock:
            self._is_started = True
            managers = list(self._managers)
        for manager in managers:
            manager.start_cancel()
