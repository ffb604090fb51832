"""Tasks of a connected cluster, made ready for another strategy."""

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tfps_plugin import errors
from tfps_plugin.cluster import health
from tfps_plugin.cluster.calls import bounded_calls
from tfps_plugin.cluster.chief import free_workers
from tfps_plugin.cluster.chief.address_book import AddressBook
from tfps_plugin.cluster.health import TaskStatus
from tfps_plugin.cluster.spec import Task

if TYPE_CHECKING:
    from tfps_plugin.cluster.chief.session import Session

_logger = logging.getLogger("tfps_plugin.cluster")

_PROBE_TIMEOUT_SECONDS = 2.0
# The least time to wait: healthy tasks answer within milliseconds.
_LEAST_SECONDS = 0.5


def rejoin(
    session: "Session", book: AddressBook, timeout_seconds: float
) -> None:
    """Makes the tasks of a session ready for another strategy.

    A worker that does not answer now is not waited for: the strategy takes
    it back when it does. No function is traced before that is known:
    TensorFlow would wait for a worker that hangs.
    """
    since = time.monotonic()
    deadline = since + timeout_seconds
    for task in session.parameter_servers:
        probe_seconds = min(_PROBE_TIMEOUT_SECONDS, _left_seconds(deadline))
        if not session.is_same_incarnation(task, probe_seconds):
            _take_back_ps(session, book, task, deadline)
    # The other half of the time is for those that answer.
    probe_seconds = min(_PROBE_TIMEOUT_SECONDS, _left_seconds(deadline) / 2)
    answering = _answering(session, session.workers, probe_seconds)
    silent = [t for t in session.workers if t not in answering]
    if silent:
        _logger.warning(
            "The new strategy does not wait for %s: no answer within "
            "%.3g s. Each is used as soon as it answers.",
            ", ".join(f"{t} at {book.now(t).address}" for t in silent),
            probe_seconds,
        )
    for task, status in answering.items():
        if status.incarnation != session.incarnation(task):
            session.readmit(task)
    free_workers.wait_for(
        [task for task in answering if task in session.listed],
        timeout_seconds,
        lambda tasks, seconds: list(_answering(session, tasks, seconds)),
        since,
    )


def _take_back_ps(
    session: "Session", book: AddressBook, task: Task, deadline: float
) -> None:
    """Takes back a ps that has died since, when it answers."""
    here = book.look_again(task)
    status = health.wait_until_ready([here], _left_seconds(deadline))[here]
    # It may have been slow to answer, no more.
    if status.incarnation != session.incarnation(task):
        session.readmit(task)


def _answering(
    session: "Session", tasks: Iterable[Task], timeout_seconds: float
) -> dict[Task, TaskStatus]:
    """Returns the tasks that answer a probe, and their answers."""
    outcomes = bounded_calls.call_all(
        lambda task: session.probe(task, timeout_seconds),
        tasks,
        timeout_seconds,
    )
    answering = {}
    for task, outcome in outcomes.items():
        if outcome.value is not None:
            answering[task] = outcome.value
        elif outcome.error is not None and not isinstance(
            outcome.error, (errors.TaskUnreachableError, TimeoutError)
        ):
            raise outcome.error
    return answering


def _left_seconds(deadline: float) -> float:
    """Returns how long to wait for tasks, until a time (monotonic)."""
    return max(_LEAST_SECONDS, deadline - time.monotonic())
