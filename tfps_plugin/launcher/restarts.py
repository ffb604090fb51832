"""Which tasks are started again after they have failed, and when. Pure."""

from collections.abc import Collection

from tfps_plugin.cluster.spec import CHIEF

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


class Restarts:
    """Counts the failures of tasks, and says who is due to start again.

    A worker, parameter server or evaluator is started again whatever it has
    failed of. The chief is so only if it was killed: if its program raised, it
    would raise again.

    Args:
        max_restarts: How often each task may be started again.
    """

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._counts: dict[str, int] = {}
        self._due: dict[str, float] = {}

    @property
    def next_due(self) -> float | None:
        """When the next task is due; None: none waits."""
        return min(self._due.values(), default=None)

    @property
    def waiting(self) -> Collection[str]:
        """The tasks that wait to be started again."""
        return self._due.keys()

    def failed(self, name: str, returncode: int, now: float) -> str | None:
        """Notes that a task has ended, and was not to.

        Args:
            name: The task.
            returncode: As `subprocess` counts: negative for a signal.
            now: The time, in seconds of a clock that only goes forward.

        Returns:
            In words when it is started again; None: it is not.
        """
        if returncode == 0 or (name == CHIEF and returncode > 0):
            return None
        count = self._counts.get(name, 0)
        if count >= self._max_restarts:
            return None
        self._counts[name] = count + 1
        pause_seconds = min(
            _FIRST_PAUSE_SECONDS * 2.0**count, _LONGEST_PAUSE_SECONDS
        )
        self._due[name] = now + pause_seconds
        return (
            f"It is started again in {pause_seconds:g} s (restart "
            f"{count + 1} of {self._max_restarts})."
        )

    def take_due(self, now: float) -> list[str]:
        """The tasks to start now."""
        due = [name for name, time in self._due.items() if time <= now]
        for name in due:
            del self._due[name]
        return due

    def cancel(self) -> None:
        """Starts nobody again: the job is about to end."""
        self._due.clear()
        self._max_restarts = 0
