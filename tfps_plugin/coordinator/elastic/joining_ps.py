"""A parameter server that joins, until it belongs to the cluster."""

import contextlib
import threading
import time
from collections.abc import Iterator

from tfps_plugin import errors
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.session_protocol import SessionLike

_PROBE_TIMEOUT_SECONDS = 2.0
_WATCH_SECONDS = 5.0
_MOST_SILENCES = 3
# Interval between two attempts to reach one that is starting.
_ATTEMPT_SECONDS = 0.5


@contextlib.contextmanager
def joining(
    session: SessionLike, task: Task, deadline: float
) -> Iterator[None]:
    """Context in which a parameter server joins.

    If it has not joined in the end, it is taken out again. Its process goes on
    to serve, and can be added once more.

    Args:
        session: The connection to the cluster.
        task: The parameter server, which `SessionLike.add_ps` has returned.
        deadline: Time (monotonic) by which it has to answer.

    Raises:
        TaskUnreachableError: If it does not answer in time.
    """
    try:
        _take_in(session, task, deadline)
        with _giving_up_if_silent(session, task):
            yield
    except BaseException:
        if task not in session.parameter_servers:
            session.retire(task)
            with contextlib.suppress(
                errors.TaskUnreachableError, errors.TaskLostError
            ):
                session.delist(task)
        raise


def _take_in(session: SessionLike, task: Task, deadline: float) -> None:
    """Connects to a parameter server, once it has started."""
    never = threading.Event()
    while True:
        try:
            session.probe(task, _PROBE_TIMEOUT_SECONDS)
            session.readmit(task)
        except errors.TaskUnreachableError:
            # Also a process that was removed, and is about to end.
            if time.monotonic() >= deadline:
                raise
        else:
            return
        never.wait(_ATTEMPT_SECONDS)


@contextlib.contextmanager
def _giving_up_if_silent(session: SessionLike, task: Task) -> Iterator[None]:
    """Fails what waits for a parameter server that does not answer.

    Nobody else watches one that does not belong to the cluster yet.
    """
    has_ended = threading.Event()

    def watch() -> None:
        num_silences = 0
        while not has_ended.wait(_WATCH_SECONDS):
            try:
                session.probe(task, _PROBE_TIMEOUT_SECONDS)
                num_silences = 0
            except errors.TaskUnreachableError:
                num_silences += 1
            if num_silences == _MOST_SILENCES:
                session.break_connections(task)

    thread = threading.Thread(target=watch, name="tfps-joining-ps", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
