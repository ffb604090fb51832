"""Thread that lets workers go which are told to end."""

import logging
import threading

from tfps_plugin.cluster.serving.messages import Leaving
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.elastic.departures import Departures
from tfps_plugin.coordinator.members.membership import Membership
from tfps_plugin.coordinator.session_protocol import SessionLike

_logger = logging.getLogger("tfps_plugin.coordinator")

_INTERVAL_SECONDS = 0.5


class Attendant:
    """Attends to what tasks tell the chief, beside a coordinator.

    Threading: `start`, `stop` and `join` are called by any thread. It has no
    lock; everything else is used by the thread itself only.
    """

    def __init__(
        self,
        session: SessionLike,
        membership: Membership,
        departures: Departures,
    ) -> None:
        """Creates the thread; it runs from `start` to `stop`.

        Args:
            session: The connection to the cluster.
            membership: The workers that take part.
            departures: Lets workers leave.
        """
        self._session = session
        self._membership = membership
        self._departures = departures
        self._stop = threading.Event()
        self._leaving: list[threading.Thread] = []
        self._thread = threading.Thread(
            target=self._run, name="tfps-attendant", daemon=True
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Makes the thread end soon."""
        self._stop.set()

    def join(self, timeout_seconds: float) -> None:
        """Waits for the end of the thread, after `stop`.

        Args:
            timeout_seconds: How long to wait at most.
        """
        self._thread.join(timeout_seconds)
        for thread in self._leaving:
            thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_SECONDS):
            try:
                self._attend()
            except Exception:
                # Without this thread, workers that are told to end are lost.
                _logger.exception("The messages of tasks could not be read.")

    def _attend(self) -> None:
        if self._session.connection.is_over:
            return
        for message in self._session.take_messages():
            if isinstance(message, Leaving):
                self._let_go(message)

    def _let_go(self, message: Leaving) -> None:
        """Lets a worker leave, on a thread of its own."""
        workers = self._membership.workers
        if message.worker_index >= len(workers):
            return
        thread = threading.Thread(
            target=self._leave,
            args=(workers[message.worker_index], message.seconds),
            name=f"tfps-departure-{message.worker_index}",
            daemon=True,
        )
        self._leaving = [each for each in self._leaving if each.is_alive()]
        self._leaving.append(thread)
        thread.start()

    def _leave(self, task: Task, seconds: float) -> None:
        _logger.warning(
            "%s at %s is told to end (SIGTERM). It ends what it runs, and has "
            "%.0f s for that.",
            task,
            task.address,
            seconds,
        )
        try:
            has_left = self._departures.leave(
                task, for_good=False, timeout_seconds=seconds
            )
        except Exception:
            _logger.exception("%s could not leave.", task)
            return
        if not has_left:
            _logger.warning(
                "%s at %s has not ended what it runs within %.0f s. It counts "
                "as lost once it has ended: its functions run again on other "
                "workers.",
                task,
                task.address,
                seconds,
            )
