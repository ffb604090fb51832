"""Cancellation of function calls when their round or connection ends."""

from typing import Any

from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.chief import connection


def install() -> None:
    """Makes every function call under a cancellation.

    A lane's call is cancelled when its closure's round ends with an error;
    calls of the chief's other threads are cancelled when the connection to the
    cluster ends. Before TensorFlow connects to another cluster, it waits for
    all of them in C++, with Python's global interpreter lock held, so no
    deadline could end that wait.

    Installing it again does nothing.
    """
    tensorflow_execution.cancel_calls_by(_of_this_thread)


def _of_this_thread() -> Any:
    context = dispatch_context.current()
    if context is None:
        return connection.present().cancellation
    return context.cancellation
