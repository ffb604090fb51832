"""Deadline for closures that wait while no worker is left.

Pure: the caller passes the time, in seconds of any steady clock.
"""

import enum

# Interval between two reports that no worker is left.
_REPORT_INTERVAL_SECONDS = 30.0


class Action(enum.Enum):
    """Action on closures that no worker can run."""

    NOTHING = "nothing"
    REPORT = "report"
    GIVE_UP = "give up"


class NoWorkerDeadline:
    """Decides when to report that no worker is left, and when to give up.

    Not thread-safe.

    Attributes:
        timeout_seconds: How long closures may wait for a worker.
        waited_seconds: How long they had waited at the last `check`.
    """

    def __init__(self, timeout_seconds: float) -> None:
        """Creates the deadline; nothing waits yet.

        Args:
            timeout_seconds: How long closures may wait for a worker.
        """
        self.timeout_seconds = timeout_seconds
        self.waited_seconds = 0.0
        self._waiting_since: float | None = None
        self._next_report = 0.0

    def seconds_left(self, now: float) -> float | None:
        """Returns the time until `GIVE_UP`; None while nothing waits."""
        if self._waiting_since is None:
            return None
        return max(0.0, self._waiting_since + self.timeout_seconds - now)

    def check(self, *, is_waiting: bool, now: float) -> Action:
        """Decides what to do now.

        Args:
            is_waiting: Whether there are closures and no worker is present.
            now: The time.

        Returns:
            `REPORT` when the wait begins and every 30 s; `GIVE_UP` at the end
            of the timeout, which then starts again.
        """
        if not is_waiting:
            self._waiting_since = None
            return Action.NOTHING
        if self._waiting_since is None:
            self._waiting_since = self._next_report = now
        self.waited_seconds = now - self._waiting_since
        if self.waited_seconds >= self.timeout_seconds:
            self._waiting_since = None
            return Action.GIVE_UP
        if now >= self._next_report:
            self._next_report = now + _REPORT_INTERVAL_SECONDS
            return Action.REPORT
        return Action.NOTHING
