"""Workers that have a thread for who comes next."""

import logging
import time
from collections.abc import Collection

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.cluster import bounded_calls
from tfps_plugin.cluster import dispatch_context
from tfps_plugin.cluster.dispatch_context import DispatchContext
from tfps_plugin.cluster.spec import Task

_logger = logging.getLogger("tfps_plugin.cluster")

# A worker with a thread to spare answers in milliseconds.
_PATIENCE_SECONDS = 10.0
# Of the one trial call: no lane of a coordinator has it.
_NO_LANE = -1


def wait_for(workers: Collection[Task], timeout_seconds: float) -> None:
    """Waits until every worker runs what it is given.

    Functions of an earlier strategy may hold all threads of a worker, which
    answers all the same: a strategy that is made meanwhile would wait for them
    as long as they run.

    Args:
        workers: Those that are connected to.
        timeout_seconds: How long to wait for them.

    Raises:
        ClusterStartTimeoutError: If some still run nothing; names them and the
            way out.
    """
    cancellation = tensorflow_execution.Cancellation()
    function = tf.function(lambda: tf.timestamp())
    # Traced here: not by several threads at once.
    traced = function.get_concrete_function()

    def run(task: Task) -> None:
        context = DispatchContext(
            worker_index=task.index,
            lane_index=_NO_LANE,
            generation=0,
            device=f"{task.name}/device:CPU:0",
            cancellation=cancellation,
        )
        executor = tensorflow_execution.new_synchronous_executor()
        with (
            dispatch_context.dispatching(context),
            tensorflow_execution.executor_scope(executor),
            tf.device(context.device),
        ):
            traced()

    def try_for(seconds: float, tasks: Collection[Task]) -> list[Task]:
        """Returns those that do not run it in time."""
        outcomes = bounded_calls.call_all(run, tasks, seconds)
        for outcome in outcomes.values():
            if isinstance(outcome.error, tf.errors.OpError):
                # Whoever uses the worker judges that.
                _logger.debug("A trial failed", exc_info=outcome.error)
            elif not isinstance(outcome.error, (TimeoutError, type(None))):
                raise outcome.error
        return [
            task
            for task, outcome in outcomes.items()
            if isinstance(outcome.error, TimeoutError)
        ]

    started = time.monotonic()
    try:
        busy = try_for(min(_PATIENCE_SECONDS, timeout_seconds), workers)
        if busy and timeout_seconds > _PATIENCE_SECONDS:
            _logger.warning(
                "Functions of an earlier strategy of this program hold %s, "
                "which therefore run nothing else. They are waited for, for "
                "another %.0f s. If they never end, close their coordinator.",
                _names(busy),
                timeout_seconds - _PATIENCE_SECONDS,
            )
            busy = try_for(timeout_seconds - _PATIENCE_SECONDS, busy)
    finally:
        cancellation.start()
    if busy:
        raise errors.ClusterStartTimeoutError(
            "The cluster is connected to already, and workers run nothing "
            "else than functions of an earlier strategy of this program; "
            "expected every worker to run a function within "
            f"start_timeout_seconds={timeout_seconds:g}. Received: nothing "
            f"for {time.monotonic() - started:.0f} s from {_names(busy)}. "
            "(1) End these functions by "
            "tfps.ClusterCoordinator(earlier_strategy).close(), and make the "
            "new strategy again; (2) allow more time, if they come to an end."
        )


def _names(tasks: Collection[Task]) -> str:
    return ", ".join(f"{task} at {task.address}" for task in tasks)
