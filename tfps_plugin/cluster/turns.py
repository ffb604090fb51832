"""Who runs functions on a worker beside others, and who alone. Pure."""

import contextlib
import threading
from collections.abc import Iterator

# Functions that wait for one another could wait here for ever. A large step
# takes a few seconds to be prepared.
_WAIT_SECONDS = 10.0


class Turns:
    """Lets the threads that drive one worker run functions, or one alone.

    Guarantees: while one runs alone, no other begins; it begins when no other
    runs. Neither waits for longer than 10 s: then it begins all the same.
    Guarded by `_changed`: how many run, how many of them are to be alone, and
    how many wait to be. Nothing else is called while holding it.
    """

    def __init__(self, wait_seconds: float = _WAIT_SECONDS) -> None:
        """Begins with nobody.

        Args:
            wait_seconds: How long to wait at most.
        """
        self._wait_seconds = wait_seconds
        self._changed = threading.Condition()
        self._num_running = 0
        self._num_alone = 0
        self._num_waiting_alone = 0

    @contextlib.contextmanager
    def turn(self, *, alone: bool) -> Iterator[None]:
        """Waits for its turn; what runs inside has it.

        Args:
            alone: Whether nobody else is to run meanwhile.
        """
        with self._changed:
            if alone:
                self._await_alone()
            else:
                # Who waits to be alone comes first, or would never.
                self._changed.wait_for(
                    lambda: not (self._num_alone or self._num_waiting_alone),
                    self._wait_seconds,
                )
            self._num_running += 1
            self._num_alone += alone
        try:
            yield
        finally:
            with self._changed:
                self._num_running -= 1
                self._num_alone -= alone
                self._changed.notify_all()

    def _await_alone(self) -> None:
        self._num_waiting_alone += 1
        try:
            self._changed.wait_for(
                lambda: not self._num_running, self._wait_seconds
            )
        finally:
            self._num_waiting_alone -= 1
            # If it did not get its turn in time, others may wait for it.
            self._changed.notify_all()
