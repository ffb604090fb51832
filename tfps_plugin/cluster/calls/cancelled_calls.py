"""Which calls of functions end when something else does."""

from typing import Any

from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.chief import connection


def install() -> None:
    """Has every call of a function be made under a cancellation.

    A call that a lane makes ends with the round of its closure; one that the
    chief's own threads make, with the connection to the cluster. TensorFlow
    waits for both before it connects to another cluster, in C++ and with all
    of Python's threads standing still: no deadline could end that.

    Installed again, it does nothing.
    """
    tensorflow_execution.cancel_calls_by(_of_this_thread)


def _of_this_thread() -> Any:
    context = dispatch_context.current()
    if context is None:
        return connection.present().cancellation
    return context.cancellation
