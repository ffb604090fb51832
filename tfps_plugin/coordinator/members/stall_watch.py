"""Which tasks have gone silent while something waits for them.

A task that dies closes its connections, and whoever waits for it is told. A
task that hangs, or whose machine is gone, tells nobody: it has to be asked.
Not only where a closure waits: TensorFlow may wait for any task of the cluster
in any call of the chief, even one that adds two numbers of its own.

Pure: the caller says what time it is, in seconds of any steady clock.
"""

from collections.abc import Hashable
from collections.abc import Mapping


class StallWatch:
    """Decides who is asked, and when silence has lasted too long.

    Not thread-safe.
    """

    def __init__(self, patience_seconds: float, max_silences: int = 3) -> None:
        """Creates the watch.

        Args:
            patience_seconds: How long a closure may run before the tasks it
                may wait for are asked, and how long tasks that nothing is
                known to wait for are left alone.
            max_silences: How often in a row a task may not answer before it
                is given up.
        """
        self._patience_seconds = patience_seconds
        self._max_silences = max_silences
        self._silences: dict[Hashable, int] = {}
        self._next_roll_call: float | None = None

    def overdue(
        self, busy_since: Mapping[int, float | None], now: float
    ) -> tuple[int, ...]:
        """Which workers run something for longer than usual.

        Args:
            busy_since: For each worker, since when its longest closure runs;
                None if it runs nothing.
            now: The time.

        Returns:
            Their indices, ascending.
        """
        return tuple(
            worker_index
            for worker_index, since in sorted(busy_since.items())
            if since is not None and now - since >= self._patience_seconds
        )

    def is_roll_call_due(self, now: float) -> bool:
        """Whether tasks are asked that nothing is known to wait for.

        Args:
            now: The time.

        Returns:
            True once every `patience_seconds`.
        """
        is_due = self._next_roll_call is not None and (
            now >= self._next_roll_call
        )
        if is_due or self._next_roll_call is None:
            self._next_roll_call = now + self._patience_seconds
        return is_due

    def is_suspect(self, task: Hashable) -> bool:
        """Whether a task did not answer when it was asked last."""
        return task in self._silences

    def answered(self, task: Hashable) -> None:
        """Notes that a task answered."""
        self._silences.pop(task, None)

    def silent(self, task: Hashable) -> bool:
        """Notes that a task did not answer; whether to give it up now."""
        silences = self._silences.pop(task, 0) + 1
        if silences >= self._max_silences:
            return True
        self._silences[task] = silences
        return False
