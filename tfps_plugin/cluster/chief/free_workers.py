"""Waits until workers have threads for the functions of a new strategy."""

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.calls import bounded_calls
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.chief import connection
from tfps_plugin.cluster.spec import Task

_logger = logging.getLogger("tfps_plugin.cluster")

# A worker with a thread to spare answers in milliseconds.
_PATIENCE_SECONDS = 10.0
# The time that a worker that ran nothing has to show that it lives.
_PROBE_SECONDS = 2.0
# The least time for a worker: a healthy one needs a moment.
_LEAST_SECONDS = 0.5
# The index of the trial call's lane, which no coordinator uses.
_NO_LANE = -1


class _TrialFunction:
    """The function that the workers of one connection are tried with.

    One eager operation is not enough: a worker runs it without any of the
    threads that functions hold.

    Guarded by `_lock`: the function; the lock is held while it is traced.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._traced: Any = None

    def get(self) -> Any:
        """Returns the function, which all connected tasks know."""
        with self._lock:
            if self._traced is None:
                function = tf.function(lambda: tf.timestamp())
                self._traced = function.get_concrete_function()
            return self._traced


def _trial_function() -> _TrialFunction:
    return connection.present().part(_TrialFunction)


class _Trials:
    """Trials of workers, and the calls that they have begun."""

    def __init__(
        self,
        deadline: float,
        answering: Callable[[list[Task], float], list[Task]] | None,
    ) -> None:
        """Tries nothing yet; see `wait_for`."""
        self._deadline = deadline
        self._answering = answering
        self._cancellation = tensorflow_execution.Cancellation()

    def busy(self, tasks: Collection[Task], end: float) -> list[Task]:
        """Tries workers, and returns those that do not run it in time."""
        seconds = max(0.0, end - time.monotonic())
        outcomes = bounded_calls.call_all(self._run, tasks, seconds)
        for outcome in outcomes.values():
            if isinstance(outcome.error, tf.errors.OpError):
                # The strategy that uses the worker handles such an error.
                _logger.debug("A trial failed", exc_info=outcome.error)
            elif not isinstance(outcome.error, (TimeoutError, type(None))):
                raise outcome.error
        return [
            task
            for task, outcome in outcomes.items()
            if isinstance(outcome.error, TimeoutError)
        ]

    def busy_and_answering(
        self, tasks: Collection[Task], end: float
    ) -> list[Task]:
        """Returns those that do not run it in time, but answer."""
        busy = self.busy(tasks, end)
        if not busy or self._answering is None:
            return busy
        left_seconds = self._deadline - time.monotonic()
        return self._answering(busy, min(_PROBE_SECONDS, left_seconds / 2))

    def cancel(self) -> None:
        """Cancels what has not ended."""
        self._cancellation.start()

    def _run(self, task: Task) -> None:
        context = DispatchContext(
            worker_index=task.index,
            lane_index=_NO_LANE,
            generation=0,
            device=f"{task.name}/device:CPU:0",
            cancellation=self._cancellation,
        )
        # Traced here, and not by the caller, so that tracing has a deadline.
        function = _trial_function().get()
        executor = tensorflow_execution.new_synchronous_executor()
        with (
            dispatch_context.dispatching(context),
            tensorflow_execution.executor_scope(executor),
            tf.device(context.device),
        ):
            function()


def prepare(timeout_seconds: float) -> None:
    """Makes the function of `wait_for` known to all tasks.

    To be called while all of them answer: TensorFlow tells every task of a
    traced function, and waits for one that hangs.

    Args:
        timeout_seconds: How long to wait for them.
    """
    try:
        bounded_calls.call(_trial_function().get, timeout_seconds)
    except TimeoutError as error:
        # Waiting for workers includes waiting for this, with its deadline.
        _logger.debug("The trial function is not known yet: %s", error)


def wait_for(
    workers: Collection[Task],
    timeout_seconds: float,
    answering: Callable[[list[Task], float], list[Task]] | None = None,
    since: float | None = None,
) -> None:
    """Waits until every worker runs what it is given.

    Functions of an earlier strategy may hold all threads of a worker that still
    answers probes: a new strategy would wait as long as they run. A worker that
    hangs is not waited for.

    Args:
        workers: Connected workers that have just answered.
        timeout_seconds: How long to wait for them; at least half a second.
        answering: Returns those of the given workers that answer a probe within
            the given seconds. None: all are assumed to.
        since: The start (monotonic) of the timeout; None: now.

    Raises:
        ClusterStartTimeoutError: If some answer, but still run nothing; names
            them and what to do.
    """
    started = time.monotonic()
    deadline = started + timeout_seconds
    if since is not None:
        deadline = max(since + timeout_seconds, started + _LEAST_SECONDS)
    seconds_given = deadline - started
    trials = _Trials(deadline, answering)
    busy = list(workers)
    try:
        if seconds_given > _PATIENCE_SECONDS:
            busy = trials.busy_and_answering(busy, started + _PATIENCE_SECONDS)
            if busy:
                _logger.warning(
                    "Functions of an earlier strategy of this program hold "
                    "%s, which therefore run nothing else. They are waited "
                    "for, for another %.0f s. If they never end, close their "
                    "coordinator.",
                    _names(busy),
                    deadline - time.monotonic(),
                )
        # The last probe, too, has ended by the deadline.
        last_probe = deadline - min(_PROBE_SECONDS, seconds_given / 4)
        if busy and time.monotonic() < last_probe:
            busy = trials.busy_and_answering(busy, last_probe)
        if busy:
            busy = trials.busy(busy, deadline)
    finally:
        trials.cancel()
    if busy:
        raise errors.ClusterStartTimeoutError(
            "The cluster is connected to already, and workers run nothing "
            "else than functions of an earlier strategy of this program; "
            "expected every worker to run a function within "
            f"timeout_seconds={timeout_seconds:g}. Received: nothing "
            f"for {time.monotonic() - started:.0f} s from {_names(busy)}. "
            "(1) End these functions by "
            "tfps.ClusterCoordinator(earlier_strategy).close(), and make the "
            "new strategy again; (2) if they come to an end, allow more time: "
            "timeout_seconds of tfps.StartupOptions."
        )


def _names(tasks: Collection[Task]) -> str:
    return ", ".join(f"{task} at {task.address}" for task in tasks)
