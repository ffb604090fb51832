"""One connection of this process to a cluster, and all state that it owns.

TensorFlow has one view of a cluster for the whole process. When the process
connects to another cluster, everything on the tasks of the first is gone. A
program that still asks TensorFlow for it gets a late error, reaches other tasks
that have the same names by then, or crashes. So every object that refers to
tasks keeps the connection that it was made on, and asks it first.

State that is shared by many objects of one connected job belongs to the
connection, too, as one of its parts (`Connection.part`); a module that kept it
in a global would carry it into the next job. Pure: no TensorFlow.
"""

import threading
from collections.abc import Callable
from typing import Any
from typing import Protocol
from typing import TypeVar

from tfps_plugin import errors

T = TypeVar("T")

# Ends its work as fast as it can. Returns whether nothing is left running.
Dependent = Callable[[errors.StrategySupersededError], bool]


class Cancellation(Protocol):
    """Cancels calls in flight, and those that begin later."""

    @property
    def started_at(self) -> float | None:
        """Time (monotonic) at which it was started; None: it was not."""

    def start(self) -> None:
        """Cancels the calls; waits for none of them."""

    def ignored_by(self) -> frozenset[Any]:
        """Returns a key of each call that was cancelled and has not ended."""


class Connection:
    """One connection of this process to a cluster, from its start to its end.

    Strategies for the same cluster share one connection. A strategy for
    another cluster gets a new one, with new parts, and ends this one.

    Attributes:
        cancellation: Cancels the calls that the chief's own threads make;
            started at the end. None: nothing cancels them.

    Guarantees: each dependent is called once, or never if it leaves before.
    There is one part of each kind.
    Guarded by `_lock`: the dependents, the parts, the reason of the end.
    Never call while holding the lock: a dependent.
    """

    def __init__(self) -> None:
        """Begins the connection."""
        self._lock = threading.Lock()
        self._dependents: list[Dependent] = []
        self._parts: dict[type, Any] = {}
        self._reason: str | None = None
        self.cancellation: Cancellation | None = None

    @property
    def is_over(self) -> bool:
        """Returns whether the connection has ended."""
        return self._reason is not None

    def require(self) -> None:
        """Checks that the connection lasts.

        Raises:
            StrategySupersededError: If it has ended.
        """
        if self._reason is not None:
            raise self._error()

    def part(self, kind: type[T]) -> T:
        """Returns the part of a kind; makes it when it is first asked for.

        Modules of higher floors keep here what all their objects of one
        connection share. The connection drops its parts when it ends.

        Args:
            kind: A class whose constructor takes no arguments and waits for
                nothing.

        Returns:
            The only instance of `kind` that belongs to this connection.

        Threading: any thread, but not while Python collects garbage. Objects
        with finalizers ask for their parts when they are made.
        """
        with self._lock:
            if kind not in self._parts:
                self._parts[kind] = kind()
            part: T = self._parts[kind]
        return part

    def on_end(self, dependent: Dependent) -> Callable[[], None]:
        """Ends something together with the connection.

        Args:
            dependent: Called on the thread that ends the connection, with the
                error for whoever asks for more.

        Returns:
            A function that undoes this; may be called again.
        """
        with self._lock:
            self._dependents.append(dependent)

        def leave() -> None:
            with self._lock:
                if dependent in self._dependents:
                    self._dependents.remove(dependent)

        return leave

    def end(self, reason: str) -> bool:
        """Ends the connection and everything that depends on it.

        Args:
            reason: What has happened to the strategy, as a clause.

        Returns:
            Whether no dependent is still running.
        """
        with self._lock:
            if self._reason is not None:
                return True
            self._reason = reason
            dependents, self._dependents = self._dependents, []
            # Dropped below, without the lock: finalizers may run then.
            parts, self._parts = self._parts, {}
        if self.cancellation is not None:
            self.cancellation.start()
        is_quiet = [dependent(self._error()) for dependent in dependents]
        parts.clear()
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

    It belongs to the process because TensorFlow's eager context does. While
    there is none to a cluster, it is that of the process to itself.
    """

    def __init__(self) -> None:
        self.connection = Connection()


_present = _Present()


def present() -> Connection:
    """Returns the connection that new objects belong to."""
    if _present.connection.is_over:
        begin()
    return _present.connection


def begin() -> Connection:
    """Begins a connection to a cluster; the previous one has ended."""
    _present.connection = Connection()
    return _present.connection
