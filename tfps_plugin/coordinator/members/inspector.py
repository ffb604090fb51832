"""Asks tasks whether they live, and says what it means for the user."""

import datetime
import threading
from collections.abc import Callable

from tfps_plugin import errors
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.coordinator.session_protocol import TaskLike
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters

RESTARTED = "it was restarted and has lost all it held"
_PROBE_TIMEOUT_SECONDS = 2.0
# A ps that does not answer is asked this often, this far apart, before it is
# given up: what follows costs the user far more than the wait.
_PS_PROBES = 3
_PS_PROBE_INTERVAL_SECONDS = 1.0


class Inspector:
    """Finds out whether the tasks that the chief is connected to live.

    Guarantees: the loss of a ps is published once, until it is well again.
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
            counters: Where losses of ps are counted.
            event_board: Where they are published.
            holdings: What a ps holds, in words, by its index.
        """
        self._holdings = holdings
        self._session = session
        self._counters = counters
        self._events = event_board
        self._lock = threading.Lock()
        self._lost_ps: dict[int, datetime.datetime] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Has every pause between two questions end at once."""
        self._stopped.set()

    def why_lost(self, task: TaskLike) -> str | None:
        """Why a task is to be given up; None if it is well.

        Takes at most two seconds.
        """
        expected = self._session.incarnation(task)
        try:
            status = self._session.probe(task, _PROBE_TIMEOUT_SECONDS)
        except errors.TaskUnreachableError as error:
            return error.reason
        return None if status.incarnation == expected else RESTARTED

    def examine_ps(
        self, task: TaskLike
    ) -> errors.ParameterServerLostError | None:
        """The error for the user if a ps is lost, else None.

        A ps that does not answer is asked a few times before it is given up.
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
        self, task: TaskLike, reason: str
    ) -> errors.ParameterServerLostError:
        """Publishes that a ps is lost, if that is news; the user's error."""
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
            f"Parameter server {task.index} at {task.address} is lost since "
            f"{since:%Y-%m-%d %H:%M:%S} UTC, and with it the variables that "
            "it held; expected it to live as long as the job. Received: "
            f"{reason}.{self._held_by(task)} What to do: (1) see that all "
            "tasks run; (2) start the chief again and go on from the last "
            "checkpoint. See docs/failure_model.md."
        )

    def _held_by(self, task: TaskLike) -> str:
        if self._holdings is None:
            return ""
        return (
            f" It held {self._holdings(task.index)}. (The system may have "
            "killed it for lack of memory; its log tells.)"
        )
