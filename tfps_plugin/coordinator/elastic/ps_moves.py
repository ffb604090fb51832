"""Moves of variables between parameter servers, one after another."""

import contextlib
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Protocol

from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.elastic.safe_points import SafePoints

# Interval at which a thread that waits for its turn looks at safe points.
_WAKE_UP_SECONDS = 0.5


class Moves(Protocol):
    """Variables on their way to other parameter servers."""

    def copy(self) -> None:
        """Copies them, while others change them; takes as long as it needs."""

    def complete(self) -> None:
        """Copies what has changed since; nobody changes anything meanwhile."""

    def go_on(self) -> int:
        """Goes on with the copies. It does not fail.

        Returns:
            Number of bytes of the variables that have moved.
        """


class Resharder(Protocol):
    """Plans moves for other parameter servers; a higher floor has it."""

    def require_number(self, number: int) -> None:
        """Refuses a number of parameter servers that options do not allow.

        Raises:
            ClusterConfigurationError: If they need more.
        """

    def begin(self, tasks: tuple[Task, ...]) -> Moves:
        """Plans the moves, and changes nothing.

        Args:
            tasks: The parameter servers that there will be.
        """


class _Turn:
    """The turn to change parameter servers; a part of a connection."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class PsMoves:
    """Moves the variables of one strategy, while its program goes on.

    Guarantees: changes of a connection happen one after the other. An interrupt
    comes before all variables go on with their copies, or after.
    Threading: any thread. It has no lock of its own.
    """

    def __init__(self, strategy: Any, safe_points: SafePoints) -> None:
        """Prepares.

        Args:
            strategy: A `tfps.ParameterServerStrategy`.
            safe_points: The moments at which its program can be paused.
        """
        self._strategy = strategy
        self._safe_points = safe_points
        self._turn = strategy.session.connection.part(_Turn).lock

    @contextlib.contextmanager
    def turn(self, deadline: float) -> Iterator[None]:
        """Context in which no other thread changes parameter servers.

        Args:
            deadline: Time (monotonic) until which to wait for that.

        Raises:
            TimeoutError: If another change takes longer.
        """
        while not self._turn.acquire(timeout=_WAKE_UP_SECONDS):
            # Whose turn it is may wait for this thread.
            self._safe_points.reach_if_program()
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    "Another change of the parameter servers goes on. "
                    "Expected its end within timeout_seconds. Received: none "
                    "yet. Call again when it has ended, or with a larger "
                    "timeout_seconds."
                )
        try:
            yield
        finally:
            self._turn.release()

    def run(
        self, moves: Moves, deadline: float, then: Callable[[], None]
    ) -> tuple[int, float]:
        """Copies while steps go on, and moves between two of them.

        Args:
            moves: The variables, planned in this turn.
            deadline: Time (monotonic) by which the program has to pause.
            then: Called when everything has moved. It does not fail.

        Returns:
            Number of bytes that have moved, and the seconds of the pause.

        Raises:
            TimeoutError: If the program does not pause in time. Nothing is
                changed then.
            tf.errors.OpError: If a parameter server was lost. Nothing is
                changed then.
        """
        moves.copy()
        num_bytes, paused_seconds = 0, 0.0

        def move() -> None:
            nonlocal num_bytes
            num_bytes = moves.go_on()
            then()

        def commit() -> None:
            nonlocal paused_seconds
            began_at = time.monotonic()
            # A lost parameter server must not be restored meanwhile.
            with self._strategy.values_lock:
                moves.complete()
                _uninterrupted(move)
            paused_seconds = time.monotonic() - began_at

        self._safe_points.run(commit, max(0.0, deadline - time.monotonic()))
        return num_bytes, paused_seconds


def _uninterrupted(act: Callable[[], None]) -> None:
    """Calls a function that no interrupt can split.

    Python raises an interrupt in the main thread, wherever that is.
    """
    raised: list[BaseException] = []

    def call() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, name="tfps-moves", daemon=True)
    thread.start()
    interrupt: KeyboardInterrupt | None = None
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt as error:
            interrupt = error
    if raised:
        raise raised[0]
    if interrupt is not None:
        raise interrupt
