"""Cancellation of calls of functions, by the thread that makes them."""

import functools
from collections.abc import Callable
from typing import Any

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
        return original() if found is None else found.new_manager()

    return context


def _of_this_thread() -> Any:
    """Returns what cancels this thread's calls; None: TensorFlow decides."""
    context = dispatch_context.current()
    if context is None:
        return connection.present().cancellation
    return context.cancellation
