"""Named numbers that count what happened."""

import threading


class Counters:
    """A set of named numbers, each created by its first increment.

    Guarantees: no increment is lost, whichever threads make them; `snapshot`
    is one consistent moment of all numbers.
    Guarded by `_lock`: the dictionary. Nothing is called while holding it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, int] = {}

    def increment(self, name: str, by: int = 1) -> None:
        """Adds `by` to the number called `name`.

        Args:
            name: Which number, such as "closures_retried".
            by: How much; never negative, because counters only grow.

        Raises:
            ValueError: If `by` is negative.
        """
        if by < 0:
            raise ValueError(
                f"Counter {name!r} only grows; expected by >= 0. "
                f"Received: by={by}"
            )
        with self._lock:
            self._values[name] = self._values.get(name, 0) + by

    def value(self, name: str) -> int:
        """The number called `name`; 0 if it never happened."""
        with self._lock:
            return self._values.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """All numbers as they are now, ordered by name."""
        with self._lock:
            return dict(sorted(self._values.items()))
