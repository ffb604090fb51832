"""The chief's view of the cluster in TensorFlow's runtime."""

import logging
import threading
from collections.abc import Collection
from collections.abc import Iterable
from typing import Any

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_cluster
from tfps_plugin.cluster import health
from tfps_plugin.cluster.chief import connections
from tfps_plugin.cluster.chief import this_process
from tfps_plugin.cluster.chief.address_book import AddressBook
from tfps_plugin.cluster.chief.server_def import make_server_def
from tfps_plugin.cluster.spec import Task

_logger = logging.getLogger("tfps_plugin.cluster")

# A change takes milliseconds once every listed task has answered. Only a task
# that dies in between delays it.
_CHANGE_TIMEOUT_SECONDS = 60.0
# The time that a change waits for an earlier one that was given up.
_EARLIER_CHANGE_TIMEOUT_SECONDS = 10.0
_PROBE_TIMEOUT_SECONDS = 2.0
# Number of probes in a row that a dead task has failed.
_PROBES = 3


class RuntimeView:
    """The tasks of one cluster that TensorFlow knows.

    Guarantees: no change overtakes another that was given up because it took
    too long; when that one ends at last, `listed` shows it.
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
            chief_address: Address of this process's own server.
            tasks: Tasks that may be listed: workers and ps.
            book: Their present addresses.
            listed: The tasks that TensorFlow is connected to.
        """
        self._chief_address = chief_address
        self._book = book
        self._tasks = tuple(tasks)
        self._lock = threading.Lock()
        self._listed = frozenset(listed)
        self._num_changes = 0

    @property
    def num_changes(self) -> int:
        """The number of changes that have begun, plus those that have ended."""
        with self._lock:
            return self._num_changes

    @property
    def listed(self) -> frozenset[Task]:
        """The tasks that TensorFlow knows now."""
        with self._lock:
            return self._listed

    def await_earlier_change(self) -> None:
        """Waits some seconds for a change that was given up.

        Raises:
            TaskLostError: If it still goes on; names the task that hangs.
        """
        try:
            this_process.state.changes.wait(_EARLIER_CHANGE_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise self._unfinished(error) from error

    def change(self, listed: frozenset[Task]) -> None:
        """Changes the tasks that TensorFlow knows.

        Everything that still waits for another task fails.

        Args:
            listed: Tasks that live: TensorFlow hangs on a dead one.

        Raises:
            TaskLostError: If TensorFlow does not finish in time; names the
                task that hangs. The change goes on.
        """
        server_def = make_server_def(
            self._chief_address, map(self._book.now, listed), is_first=False
        )
        leaving = [self._book.now(task) for task in self.listed - listed]

        def change() -> None:
            with self._lock:
                self._num_changes += 1
            # TensorFlow waits for every call in flight, also to tasks that do
            # not answer anymore.
            connections.break_to(each.address for each in leaving)
            tensorflow_cluster.update_server_def(server_def)
            # Noted here, because nobody may be waiting when the change ends.
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
        """Makes TensorFlow forget the tasks while they still live.

        Otherwise it would try to free its objects on them while they end, and
        log each failure. A failure is logged at level DEBUG.

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
        """Returns the error for a change that takes too long."""
        # Also tasks that are not listed: they may be about to be.
        answers = health.probe_all(
            [
                self._book.now(task)
                for task in dict.fromkeys([*self._tasks, *self.listed])
            ],
            _PROBE_TIMEOUT_SECONDS,
        )
        silent = {
            task: answer.reason
            for task, answer in answers.items()
            if isinstance(answer, errors.TaskUnreachableError)
        }
        # A task that fell silent since the change began delays it no longer.
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


def find_dead(
    tasks: Iterable[Task], book: AddressBook, needed: Collection[Task]
) -> frozenset[Task]:
    """Returns tasks that fail several probes in a row.

    Args:
        tasks: Workers and ps, all probed at the same time.
        book: Their present addresses.
        needed: The ps that hold variables. Others are about to join, or have
            left.

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
        if known[task] in needed:
            raise answers[task]
    return frozenset(known[task] for task in suspects)
