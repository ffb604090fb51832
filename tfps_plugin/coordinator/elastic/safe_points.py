"""Moments at which nothing of the program runs on the cluster."""

import contextlib
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator

from tfps_plugin.variables.chief import steps_in_flight

# Interval at which a wait returns to Python by itself.
_WAKE_UP_SECONDS = 1.0


_thread_local = threading.local()


@contextlib.contextmanager
def held_off() -> Iterator[None]:
    """Context in which this thread, which is none of the program, runs on."""
    before = _is_held_off()
    _thread_local.is_held_off = True
    try:
        yield
    finally:
        _thread_local.is_held_off = before


def _is_held_off() -> bool:
    return getattr(_thread_local, "is_held_off", False)


class _Posted:
    """An action that waits for a safe point."""

    def __init__(self, action: Callable[[], None], deadline: float) -> None:
        self.action = action
        self.deadline = deadline
        self.has_ended = threading.Event()
        self.error: BaseException | None = None


class SafePoints:
    """Lets an action run while no function of the program runs or waits.

    A thread of the program is at a safe point when it calls the coordinator, or
    asks for the next step in `fit`. There, it first lets its functions end, and
    then runs the action itself: so the action cannot meet anything that the
    thread does.

    Guarantees: while an action runs, no thread schedules. One action runs at a
    time.
    Guarded by `_lock`: the posted action, and the thread that was last at a
    safe point. Guarded by `_gate`, taken before it: what is being scheduled.
    """

    def __init__(self, drain: Callable[[float], bool]) -> None:
        """Begins without an action.

        Args:
            drain: Waits, some seconds at most, until no function waits or
                runs; returns whether none does.
        """
        self._drain = drain
        self._lock = threading.Lock()
        # Reentrant: what an action does may read, and so reach a safe point.
        self._gate = threading.RLock()
        self._posted: _Posted | None = None
        self._program: threading.Thread | None = None
        self._running_on: int | None = None

    @property
    def is_wanted(self) -> bool:
        """True if an action waits for the program."""
        return self._posted is not None

    def reach_between_steps(self) -> None:
        """Like `reach`, for `fit`, which knows when it is between two steps."""
        self._program = threading.current_thread()
        posted = self._posted
        if posted is None or self._running_on == threading.get_ident():
            return
        with self._gate:
            if self._posted is posted:
                self._run(posted)

    @contextlib.contextmanager
    def scheduling(self) -> Iterator[None]:
        """Context in which a thread schedules; first a safe point."""
        if _is_held_off():
            # An action waits for what this thread does.
            yield
            return
        self.reach()
        with self._gate:
            yield

    def reach(self) -> None:
        """Runs the action that waits, if one does; on a program's thread.

        In `fit`, and on threads that work for the coordinator, it does nothing.

        Raises:
            BaseException: What a function of the program has raised, which was
                to be waited for. The action goes on waiting.
        """
        if not (steps_in_flight.may_be_in_flight() or _is_held_off()):
            self.reach_between_steps()

    def run(self, action: Callable[[], None], timeout_seconds: float) -> None:
        """Runs an action at a safe point, and waits for its end.

        Args:
            action: The action. It runs on the thread of the program, or here
                if there is no other.
            timeout_seconds: How long to wait for that thread, and for its
                functions.

        Raises:
            TimeoutError: If the action has not begun by then.
            BaseException: What it has raised.
        """
        posted = _Posted(action, time.monotonic() + timeout_seconds)
        with self._lock:
            self._posted = posted
        program = self._program
        if program in (None, threading.current_thread()) or not (
            program.is_alive()
        ):
            try:
                with self._gate:
                    self._run(posted)
            except BaseException:
                self._withdraw(posted)
                raise
        while not posted.has_ended.wait(_WAKE_UP_SECONDS):
            if time.monotonic() >= posted.deadline and self._withdraw(posted):
                raise TimeoutError(
                    "The program has not reached a moment without functions on "
                    f"the cluster within {timeout_seconds:.0f} s. Expected it "
                    "to schedule, to join, or to train, and its functions to "
                    "end."
                )
        if posted.error is not None:
            raise posted.error

    def _withdraw(self, posted: _Posted) -> bool:
        """Returns whether an action that waits was withdrawn."""
        if self._running_on is not None:
            return False
        with self._lock:
            if self._posted is posted:
                self._posted = None
        return not posted.has_ended.is_set()

    def _run(self, posted: _Posted) -> None:
        """Runs an action, once functions have ended; needs the gate."""
        self._running_on = threading.get_ident()
        try:
            steps_in_flight.finish()
            left_seconds = posted.deadline - time.monotonic()
            if not self._drain(max(0.0, left_seconds)):
                return
            with self._lock:
                if self._posted is not posted:
                    return
            try:
                posted.action()
            except BaseException as error:
                posted.error = error
                if not isinstance(error, Exception):
                    raise
            finally:
                with self._lock:
                    self._posted = None
                posted.has_ended.set()
        finally:
            self._running_on = None
