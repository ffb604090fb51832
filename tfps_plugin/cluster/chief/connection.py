"""Whether the connection that something was made on is still the present one.

TensorFlow has one view of a cluster for the whole process. When the process
connects to another cluster, what was on the tasks of the first is gone, and to
ask TensorFlow for it fails late, by names that mean other tasks by then, or
takes the process down. Whatever refers to tasks therefore keeps the connection
that it was made on, and asks it first. Pure: no TensorFlow.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from tfps_plugin import errors

# Ends what goes on, as fast as it can; whether nothing goes on any more.
Dependent = Callable[[errors.StrategySupersededError], bool]


class Cancellation(Protocol):
    """Ends calls that are under way."""

    def start(self) -> None:
        """Has the calls end; waits for none of them."""


class Connection:
    """One connection of this process to a cluster, from its begin to its end.

    Attributes:
        cancellation: Of the calls that the chief's own threads make
            meanwhile; started at the end. None: nothing cancels them.

    Guarantees: each dependent is called once, or never if it leaves before.
    Guarded by `_lock`: the dependents, why it has ended.
    Never call while holding the lock: a dependent.
    """

    def __init__(self) -> None:
        """Begins the connection."""
        self._lock = threading.Lock()
        self._dependents: list[Dependent] = []
        self._reason: str | None = None
        self.cancellation: Cancellation | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._reason is not None

    def require(self) -> None:
        """Does nothing while the connection lasts.

        Raises:
            StrategySupersededError: If it has ended.
        """
        if self._reason is not None:
            raise self._error()

    def on_end(self, dependent: Dependent) -> Callable[[], None]:
        """Has something ended together with the connection.

        Args:
            dependent: Called on the thread that ends the connection, with the
                error for whoever asks for more.

        Returns:
            A function that takes it back; calling it again is fine.
        """
        with self._lock:
            self._dependents.append(dependent)

        def leave() -> None:
            with self._lock:
                if dependent in self._dependents:
                    self._dependents.remove(dependent)

        return leave

    def end(self, reason: str) -> bool:
        """Ends it, and what depends on it.

        Args:
            reason: What has happened to the strategy, as a clause.

        Returns:
            Whether nothing of what depended on it goes on.
        """
        with self._lock:
            if self._reason is not None:
                return True
            self._reason = reason
            dependents, self._dependents = self._dependents, []
        if self.cancellation is not None:
            self.cancellation.start()
        is_quiet = [dependent(self._error()) for dependent in dependents]
        return all(is_quiet)

    def _error(self) -> errors.StrategySupersededError:
        return errors.StrategySupersededError(
            f"The strategy was {self._reason}; expected the strategy that this "
            "process has made last, on a cluster that runs. Its variables, "
            "models, functions and results are gone from this process. Use "
            "those that were made under the newest strategy; for values of "
            "the older one, save them before it ends, or restore its last "
            "checkpoint under the new one."
        )


class _Present:
    """The connection that TensorFlow has now.

    While there is none to a cluster, it is that of the process to itself.
    """

    def __init__(self) -> None:
        self.connection = Connection()


_present = _Present()


def present() -> Connection:
    """The connection that what is made now belongs to."""
    if _present.connection.is_over:
        begin()
    return _present.connection


def begin() -> Connection:
    """Begins a connection to a cluster; the one before has ended."""
    _present.connection = Connection()
    return _present.connection
