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
        self.has_begun = False
        self.has_ended = threading.Event()
        self.error: BaseException | None = None


class SafePoints:
    """Lets an action run while no function of the program runs or waits.

    A thread of the program is at a safe point when it calls the coordinator, or
    asks for the next step in `fit`. There, it first lets its functions end, and
    then runs the action itself: so the action cannot meet anything that the
    thread does.

    Guarantees: while an action runs, no thread schedules. One action runs at a
    time. An action that was withdrawn never begins.
    Guarded by `_lock`: the posted action, and whether it has begun. Guarded by
    `_gate`, taken before it: what is being scheduled. Without a lock: the
    thread that was last at a safe point.
    """

    def __init__(
        self,
        drain: Callable[[float], bool],
        raise_error: Callable[[], None] = lambda: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begins without an action; the thread that calls it is the program's.

        Args:
            drain: Waits, some seconds at most, until no function waits or
                runs; returns whether none does.
            raise_error: Raises what a function has raised, if anything.
            is_over: Returns whether the program schedules no more.
        """
        self._drain = drain
        self._raise_error = raise_error
        self._is_over = is_over
        self._lock = threading.Lock()
        # Reentrant: what an action does may read, and so reach a safe point.
        self._gate = threading.RLock()
        self._posted: _Posted | None = None
        self._program = threading.current_thread()
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

    def reach_if_program(self) -> None:
        """Runs the action that waits, if this is the thread of the program."""
        if self._program is threading.current_thread():
            self.reach_between_steps()

    @property
    def is_on_program(self) -> bool:
        """True on the thread of the program, or if that has ended."""
        program = self._program
        return program is threading.current_thread() or not program.is_alive()

    def run(self, action: Callable[[], None], timeout_seconds: float) -> None:
        """Runs an action at a safe point, and waits for its end.

        Args:
            action: The action. It runs on the thread of the program, or here
                if that has ended.
            timeout_seconds: How long to wait for that thread, and for its
                functions.

        Raises:
            TimeoutError: If the action has not begun by then.
            BaseException: What it has raised; or what a function has, if it
                should run here.
        """
        posted = _Posted(action, time.monotonic() + timeout_seconds)
        with self._lock:
            self._posted = posted
        try:
            if self.is_on_program:
                with self._gate:
                    self._run(posted)
                if not posted.has_ended.is_set():
                    self._raise_error()
            self._wait(posted, timeout_seconds)
        except BaseException:
            self._withdraw(posted)
            raise
        error = posted.error
        if error is not None:
            if isinstance(error, Exception):
                raise error
            # An interrupt is for the thread that it has come to.
            raise RuntimeError("The action was interrupted.") from error

    def _wait(self, posted: _Posted, timeout_seconds: float) -> None:
        while not posted.has_ended.wait(_WAKE_UP_SECONDS):
            is_late = time.monotonic() >= posted.deadline or self._is_over()
            if is_late and self._withdraw(posted):
                raise TimeoutError(
                    "The program has not reached a moment without functions on "
                    f"the cluster within {timeout_seconds:.0f} s. Expected it "
                    "to schedule, to join, or to train, and its functions to "
                    f"end. Received: nothing of that from {self._program.name}"
                    ". Call from that thread, or with a larger "
                    "timeout_seconds."
                )

    def _withdraw(self, posted: _Posted) -> bool:
        """Withdraws an action; returns False if it has begun."""
        with self._lock:
            if posted.has_begun:
                return False
            if self._posted is posted:
                self._posted = None
            return True

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
                posted.has_begun = True
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
