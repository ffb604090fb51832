"""Inspector of tasks: probes whether they live."""

import datetime
import threading
from collections.abc import Callable

from tfps_plugin import errors
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters

RESTARTED = "it was restarted and has lost all it held"
_PROBE_TIMEOUT_SECONDS = 2.0
# Number of probes, and the time between them, before a silent ps is given up.
# Its loss costs the user far more than the wait.
_PS_PROBES = 3
_PS_PROBE_INTERVAL_SECONDS = 1.0


class Inspector:
    """Finds out whether the tasks that the chief is connected to live.

    Guarantees: the loss of a ps is published once, until it answers again.
    Guarded by `_lock`: the lost ps.
    Never call while holding the lock: the session, subscribers.
    """

    def __init__(
        self,
        session: SessionLike,
        counters: Counters,
        event_board: events.Events,
        holdings: Callable[[int], str] | None = None,
    ) -> None:
        """Creates the inspector.

        Args:
            session: The connection to the cluster.
            counters: Counts losses of ps.
            event_board: Publishes them.
            holdings: Describes what a ps holds, by its index.
        """
        self._holdings = holdings
        self._session = session
        self._counters = counters
        self._events = event_board
        self._lock = threading.Lock()
        self._lost_ps: dict[int, datetime.datetime] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ends every pause between two probes."""
        self._stopped.set()

    def why_lost(self, task: Task) -> str | None:
        """Probes a task; takes at most two seconds.

        Returns:
            The reason to give the task up; None if it lives.
        """
        expected = self._session.incarnation(task)
        try:
            status = self._session.probe(task, _PROBE_TIMEOUT_SECONDS)
        except errors.TaskUnreachableError as error:
            return error.reason
        # It may have been readmitted while it was asked.
        if status.incarnation in (expected, self._session.incarnation(task)):
            return None
        return RESTARTED

    def examine_ps(self, task: Task) -> errors.ParameterServerLostError | None:
        """Probes a ps, a few times if it does not answer.

        Returns:
            The error for the user if the ps is lost, else None.
        """
        reason = self.why_lost(task)
        for _ in range(_PS_PROBES - 1):
            if reason is None or reason == RESTARTED:
                break
            self._stopped.wait(_PS_PROBE_INTERVAL_SECONDS)
            reason = self.why_lost(task)
        if reason is None:
            with self._lock:
                self._lost_ps.pop(task.index, None)
            return None
        return self.ps_lost(task, reason)

    def ps_lost(
        self, task: Task, reason: str
    ) -> errors.ParameterServerLostError:
        """Publishes the loss of a ps, if it is news.

        Returns:
            The error for the user.
        """
        with self._lock:
            is_news = task.index not in self._lost_ps
            since = self._lost_ps.setdefault(
                task.index, datetime.datetime.now(datetime.UTC)
            )
        if is_news:
            self._counters.increment("ps_lost")
            self._events.publish(
                events.ParameterServerLost(task.index, task.address, reason)
            )
        return errors.ParameterServerLostError(
            f"Parameter server {task.index} at {task.address} was lost at "
            f"{since:%Y-%m-%d %H:%M:%S} UTC, and with it the variables that "
            "it held; expected it to live as long as the job. Received: "
            f"{reason}.{self._held_by(task)} What to do: (1) check that all "
            "tasks run; (2) restart the chief, and continue from the last "
            "checkpoint. See docs/failure_model.md."
        )

    def _held_by(self, task: Task) -> str:
        if self._holdings is None:
            return ""
        return (
            f" It held {self._holdings(task.index)}. (It may have run out of "
            "memory; check its log.)"
        )
