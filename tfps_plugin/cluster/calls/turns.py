"""Who runs functions on a worker beside others, and who alone. Pure."""

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

# Functions that wait for one another could wait here for ever. A large step
# takes a few seconds to be prepared.
_WAIT_SECONDS = 10.0


class _Turn(NamedTuple):
    thread_id: int
    is_alone: bool


class Turns:
    """Lets the threads that drive one worker run functions, or one alone.

    Guarantees: while one runs alone, no other begins; it begins when no other
    runs. Neither waits for longer than 10 s: then it begins all the same.
    Nobody waits for a thread that is given up.
    Guarded by `_changed`: who runs, and how many wait to be alone. Nothing
    else is called while holding it.
    """

    def __init__(self, wait_seconds: float = _WAIT_SECONDS) -> None:
        """Begins with nobody.

        Args:
            wait_seconds: How long to wait at most.
        """
        self._wait_seconds = wait_seconds
        self._changed = threading.Condition()
        self._running: list[_Turn] = []
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
                    lambda: not (self._num_waiting_alone or self._is_taken),
                    self._wait_seconds,
                )
            mine = _Turn(threading.get_ident(), alone)
            self._running.append(mine)
        try:
            yield
        finally:
            with self._changed:
                if mine in self._running:
                    self._running.remove(mine)
                self._changed.notify_all()

    def give_up(self, thread_id: int) -> None:
        """Has nobody wait any more for what a thread runs.

        Args:
            thread_id: `ident` of the thread, which may hang for ever.
        """
        with self._changed:
            self._running = [
                turn for turn in self._running if turn.thread_id != thread_id
            ]
            self._changed.notify_all()

    @property
    def _is_taken(self) -> bool:
        return any(turn.is_alone for turn in self._running)

    def _await_alone(self) -> None:
        self._num_waiting_alone += 1
        try:
            self._changed.wait_for(
                lambda: not self._running, self._wait_seconds
            )
        finally:
            self._num_waiting_alone -= 1
            # If it did not get its turn in time, others may wait for it.
            self._changed.notify_all()
