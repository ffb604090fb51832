"""Named counters, and the number of steps that they tell."""

import threading


class Counters:
    """Set of named counters, each created by its first increment.

    Guarantees: no increment is lost, on whichever threads they are made;
    `snapshot` is consistent over all counters.
    Guarded by `_lock`: the dictionary. Nothing is called while holding it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, int] = {}

    def increment(self, name: str, by: int = 1) -> None:
        """Adds `by` to the counter called `name`.

        Args:
            name: Name of the counter, such as "closures_retried".
            by: Amount; never negative, because counters only grow.
        """
        with self._lock:
            self._values[name] = self._values.get(name, 0) + by

    def raise_to(self, name: str, value: int) -> None:
        """Sets the counter called `name` to `value`, unless it is larger.

        Args:
            name: Name of the counter, such as "staleness_largest".
            value: Smallest value that it has from now on.
        """
        with self._lock:
            self._values[name] = max(self._values.get(name, 0), value)

    def value(self, name: str) -> int:
        """Returns the counter called `name`; 0 if it was never incremented."""
        with self._lock:
            return self._values.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """Returns all counters at one moment, ordered by name."""
        with self._lock:
            return dict(sorted(self._values.items()))


def num_steps(counters: Counters) -> int:
    """Returns the steps of `fit`, `evaluate`, `predict` and custom loops.

    Args:
        counters: The counters of a coordinator.
    """
    return (
        counters.value("steps_done")
        + counters.value("batches_predicted")
        + counters.value("functions_done")
        # Python callables are steps if nothing else was.
        or counters.value("closures_done")
    )
