"""Which tasks TensorFlow's runtime knows, and how that is changed."""

import logging
import threading
from collections.abc import Iterable
from typing import Any

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_cluster
from tfps_plugin.cluster import health
from tfps_plugin.cluster.chief import connections
from tfps_plugin.cluster.chief import this_process
from tfps_plugin.cluster.chief.address_book import AddressBook
from tfps_plugin.cluster.chief.server_def import make_server_def
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import Task

_logger = logging.getLogger("tfps_plugin.cluster")

# Changing the membership takes milliseconds once every listed task has
# answered. Only one that dies in between holds it up.
_CHANGE_TIMEOUT_SECONDS = 60.0
# How long a change waits for an earlier one that was given up, but goes on.
_EARLIER_CHANGE_TIMEOUT_SECONDS = 10.0
_PROBE_TIMEOUT_SECONDS = 2.0
# A task is only taken for dead if it fails so many probes in a row.
_PROBES = 3


class RuntimeView:
    """The tasks that TensorFlow knows, of those of one cluster.

    Guarantees: a change that was given up because it took too long is never
    overtaken by another; when it ends at last, `listed` says so.
    Guarded by `_lock`: `_listed`, `_num_changes`.
    Never call while holding `_lock`: anything that waits.
    Threading: `listed` from any thread; all else from one at a time.
    """

    def __init__(
        self,
        chief_address: str,
        tasks: Iterable[Task],
        book: AddressBook,
        listed: Iterable[Task],
    ) -> None:
        """Describes a runtime that is connected to some of the tasks.

        Args:
            chief_address: Where this process's own server listens.
            tasks: All that may be listed: workers and ps.
            book: Where they are.
            listed: Those that TensorFlow is connected to.
        """
        self._chief_address = chief_address
        self._book = book
        self._tasks = tuple(tasks)
        self._lock = threading.Lock()
        self._listed = frozenset(listed)
        self._num_changes = 0

    @property
    def num_changes(self) -> int:
        """How many changes have begun, and how many have ended, together."""
        with self._lock:
            return self._num_changes

    @property
    def listed(self) -> frozenset[Task]:
        """The tasks that TensorFlow knows now."""
        with self._lock:
            return self._listed

    def await_earlier_change(self) -> None:
        """Waits for a change that was given up, for some seconds.

        Raises:
            TaskLostError: If it still goes on; names who hangs.
        """
        try:
            this_process.state.changes.wait(_EARLIER_CHANGE_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise self._unfinished(error) from error

    def change(self, listed: frozenset[Task]) -> None:
        """Tells TensorFlow which tasks there are from now on.

        Whatever still waits for a task that is not among them fails.

        Args:
            listed: Tasks that live: TensorFlow hangs on one that is dead.

        Raises:
            TaskLostError: If TensorFlow does not finish in time; names who
                hangs. It goes on.
        """
        server_def = make_server_def(
            self._chief_address, map(self._book.now, listed), is_first=False
        )
        leaving = [self._book.now(task) for task in self.listed - listed]

        def change() -> None:
            with self._lock:
                self._num_changes += 1
            # TensorFlow waits for every call that is on its way, also to those
            # that have nothing more to say.
            connections.break_to(each.address for each in leaving)
            tensorflow_cluster.update_server_def(server_def)
            # Noted here, because it may end when nobody waits any more.
            with self._lock:
                self._num_changes += 1
                self._listed = listed

        try:
            this_process.state.changes.call(
                change,
                _CHANGE_TIMEOUT_SECONDS,
                wait_seconds=_EARLIER_CHANGE_TIMEOUT_SECONDS,
            )
        except TimeoutError as error:
            raise self._unfinished(error) from error

    def detach(self, timeout_seconds: float) -> None:
        """Lets TensorFlow forget the tasks while they still live.

        Otherwise it would try to free what it has on them while they end, and
        log each failure. Nothing happens if it cannot.

        Args:
            timeout_seconds: How long to wait for an earlier change, and then
                for this one.
        """
        try:
            this_process.state.changes.call(
                lambda: tensorflow_cluster.update_server_def(
                    make_server_def(self._chief_address, (), is_first=False)
                ),
                timeout_seconds,
                wait_seconds=timeout_seconds,
            )
        except Exception as error:
            _logger.debug("Could not detach from the tasks: %s", error)

    def _unfinished(self, error: TimeoutError) -> errors.TaskLostError:
        """The error for a change that takes too long; names who hangs."""
        # Also those that are not listed: they may be about to be.
        answers = health.probe_all(
            [self._book.now(task) for task in self._tasks],
            _PROBE_TIMEOUT_SECONDS,
        )
        silent = {
            task: answer.reason
            for task, answer in answers.items()
            if isinstance(answer, errors.TaskUnreachableError)
        }
        # One that fell silent since the change began holds it up no longer.
        connections.break_to(task.address for task in silent)
        received = ", ".join(
            f"{task} at {task.address} ({reason})"
            for task, reason in silent.items()
        )
        return errors.TaskLostError(
            "A change of the cluster's membership is held up by a task: "
            f"{error}. Expected every task to answer. Received: no answer "
            f"from {received or 'none, when asked now: all do'}. "
            "Until TensorFlow has finished, no task is taken out or taken "
            "back. End the process that hangs; if that does not help, start "
            "the chief again: it goes on from the last checkpoint."
        )


def find_dead_workers(
    tasks: Iterable[Task], book: AddressBook
) -> frozenset[Task]:
    """Workers that fail several probes in a row, and may not stay listed.

    Args:
        tasks: Workers and ps, all asked at the same time.
        book: Where they are.

    Raises:
        TaskUnreachableError: If a ps does not answer: it is never given up
            unasked.
    """
    known = {book.now(task): task for task in tasks}
    suspects = tuple(known)
    answers: dict[Task, Any] = {}
    for _ in range(_PROBES):
        answers = health.probe_all(suspects, _PROBE_TIMEOUT_SECONDS)
        suspects = tuple(
            task
            for task, answer in answers.items()
            if isinstance(answer, errors.TaskUnreachableError)
        )
        if not suspects:
            return frozenset()
    for task in suspects:
        if task.job == PARAMETER_SERVER:
            raise answers[task]
    return frozenset(known[task] for task in suspects)
