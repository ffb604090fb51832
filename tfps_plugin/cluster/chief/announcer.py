"""Tells the tasks who the chief is, and when its job is over."""

import contextlib
import logging
import uuid
from collections.abc import Iterable

from tfps_plugin import errors
from tfps_plugin.cluster import health
from tfps_plugin.cluster.calls import bounded_calls
from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.serving import mailbox
from tfps_plugin.cluster.serving import messages
from tfps_plugin.cluster.spec import Task
from tfps_plugin.cluster.spec import join_address
from tfps_plugin.cluster.spec import split_address

_logger = logging.getLogger("tfps_plugin.cluster")

_PROBE_TIMEOUT_SECONDS = 2.0
_PROBES = 3
_POST_TIMEOUT_SECONDS = 10.0
# Tasks that are gone must not delay the end of the job for long.
_FAREWELL_TIMEOUT_SECONDS = 2.0


class Announcer:
    """Announces one connection of a chief to its tasks.

    Threading: any thread, once `identify` has returned.
    """

    def __init__(self, chief_address: str) -> None:
        """Creates the announcer of a new connection.

        Args:
            chief_address: Address at which tasks reach this process's server.
        """
        self._chief_id = uuid.uuid4().hex
        self._chief_address = chief_address
        self._chief_incarnation = 0

    @property
    def chief_id(self) -> str:
        """The name by which tasks know this connection."""
        return self._chief_id

    def identify(self) -> None:
        """Asks the chief's own server for its incarnation.

        It never changes, so later announcements do not depend on a chief that
        answers quickly.

        Raises:
            TaskUnreachableError: If it does not answer.
        """
        own_port = split_address(self._chief_address)[1]
        # By the loopback address: not every network lets a machine reach
        # itself by the address that others use.
        own_address = join_address(ports.LOOPBACK, own_port)
        for _ in range(_PROBES - 1):
            with contextlib.suppress(errors.TaskUnreachableError):
                self._chief_incarnation = health.probe(
                    own_address, _PROBE_TIMEOUT_SECONDS
                ).incarnation
                return
        self._chief_incarnation = health.probe(
            own_address, _PROBE_TIMEOUT_SECONDS
        ).incarnation

    def chief_here(self, tasks: Iterable[Task]) -> None:
        """Tells tasks which chief to watch; logs those that it cannot reach."""
        late = _post_all(
            tasks,
            messages.ChiefHere(
                self._chief_id, self._chief_address, self._chief_incarnation
            ),
            _POST_TIMEOUT_SECONDS,
        )
        for task, error in late.items():
            _logger.warning(
                "%s at %s was not told which chief to watch, and may not end "
                "with the job: %s",
                task,
                task.address,
                error,
            )

    def job_over(self, tasks: Iterable[Task]) -> None:
        """Tells tasks to end, if they still answer."""
        _post_all(
            tasks, messages.JobOver(self._chief_id), _FAREWELL_TIMEOUT_SECONDS
        )


def _post_all(
    tasks: Iterable[Task],
    message: messages.Message,
    timeout_seconds: float,
) -> dict[Task, BaseException]:
    """Posts a message to tasks; returns those that it did not reach."""
    text = messages.encode(message)
    outcomes = bounded_calls.call_all(
        lambda task: _post_if_alive(task, text, timeout_seconds),
        tasks,
        timeout_seconds + 1.0,
    )
    return {
        task: outcome.error
        for task, outcome in outcomes.items()
        if outcome.error is not None
    }


def _post_if_alive(task: Task, text: str, timeout_seconds: float) -> None:
    # A probe detects a dead task in a millisecond; posting would wait.
    health.probe_task(task, timeout_seconds / 2)
    mailbox.post(task, text, timeout_seconds / 2)
