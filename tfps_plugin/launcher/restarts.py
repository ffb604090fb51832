"""Restarts of failed tasks: who is started again, and when. Pure."""

import math
from collections.abc import Collection

from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import EVALUATOR

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
# A task that has run for so long after a failure is healthy: if it fails again,
# the pauses begin anew, as in Kubernetes.
_FORGET_SECONDS = 10 * 60.0
# An error of the chief so soon after the death of another task counts as its
# consequence. The chief may have waited for the task, by default 10 minutes.
_BLAME_SECONDS = 11 * 60.0


class Restarts:
    """Counts the failures of tasks, and names those to start again.

    A worker, parameter server or evaluator is started again after any failure.
    The chief is started again if it was killed, or if a task of its cluster had
    died shortly before, because its program may then raise through no fault of
    its own. Otherwise it would raise again.

    Args:
        max_restarts: The number of restarts of each task.
    """

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._counts: dict[str, int] = {}
        self._pauses: dict[str, float] = {}
        self._started_at: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._cluster_failed_at = -math.inf

    @property
    def next_due(self) -> float | None:
        """The time at which the next task is due; None if none waits."""
        return min(self._due.values(), default=None)

    @property
    def waiting(self) -> Collection[str]:
        """The names of tasks that wait to be started again."""
        return self._due.keys()

    def failed(self, name: str, returncode: int, now: float) -> str | None:
        """Records that a task has ended unexpectedly.

        Args:
            name: The task's name.
            returncode: The exit code, as in `subprocess`: negative after a
                signal.
            now: The time, in seconds of a monotonic clock.

        Returns:
            A sentence that says when the task is started again; None if it is
            not.
        """
        if returncode == 0:
            return None
        if name == CHIEF:
            is_its_own_fault = now - self._cluster_failed_at > _BLAME_SECONDS
            if returncode > 0 and is_its_own_fault:
                return None
        elif name != EVALUATOR:
            self._cluster_failed_at = now
        count = self._counts.get(name, 0)
        if count >= self._max_restarts:
            return None
        self._counts[name] = count + 1
        pause_seconds = self._next_pause(name, now)
        self._due[name] = now + pause_seconds
        return (
            f"It is started again in {pause_seconds:g} s (restart "
            f"{count + 1} of {self._max_restarts})."
        )

    def take_due(self, now: float) -> list[str]:
        """Returns the names of the tasks to start now."""
        due = [name for name, time in self._due.items() if time <= now]
        for name in due:
            del self._due[name]
            self._started_at[name] = now
        return due

    def cancel(self) -> None:
        """Cancels all restarts: the job is about to end."""
        self._due.clear()
        self._max_restarts = 0

    def _next_pause(self, name: str, now: float) -> float:
        """Returns a task's pause: twice as long as the last one."""
        pause_seconds = _FIRST_PAUSE_SECONDS
        if now - self._started_at.get(name, -math.inf) < _FORGET_SECONDS:
            pause_seconds = min(2 * self._pauses[name], _LONGEST_PAUSE_SECONDS)
        self._pauses[name] = pause_seconds
        return pause_seconds
