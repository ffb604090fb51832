"""Private TensorFlow API: the registration of functions with the tasks.

Whatever is traced on the chief, by whomever, is registered with its eager
context, which sends it to every task that it knows. While the membership
changes, it knows tasks that it cannot reach any more, and others that it does
not send to yet: a function that is registered meanwhile fails ("Client for
target ... not found"), or stays unknown to a task for good.

TensorFlow waits for the answer of every task, and holds Python's global
interpreter lock (GIL) while it waits: if a task is silent, no thread of the
chief runs, for minutes. So tasks are asked first, without that lock.
"""

import collections
import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Protocol

# A change takes milliseconds, unless a task hangs.
_PATIENCE_SECONDS = 10.0
# The time to wait for silent tasks. Within it, the coordinator gives them up.
_SILENCE_SECONDS = 60.0
# The least time for which an answer of all tasks counts, and that time in terms
# of the time that it took: to ask takes a twentieth of all time at most.
_FRESH_SECONDS = 0.1
_FRESH_TIMES = 20
# The time between two questions to tasks that were awaited in vain.
_GIVEN_UP_SECONDS = 10.0


class _Turns:
    """Turns: one thread at a time registers functions or changes membership.

    Guarantees: no thread waits longer than `_PATIENCE_SECONDS`, and no thread
    waits a second time for one that takes longer: it then goes on without a
    turn.
    Guarded by `_lock`: nothing; it is the turn, and is reentrant.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Written by the thread that has the turn, or that waited in vain;
        # both are single assignments.
        self._number = 0
        self._given_up = -1

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Gives the caller a turn."""
        number = self._number
        patience = 0.0 if number == self._given_up else _PATIENCE_SECONDS
        has_turn = self._lock.acquire(timeout=patience)
        if has_turn:
            self._number += 1
        elif number == self._number:
            self._given_up = number
        try:
            yield
        finally:
            if has_turn:
                self._lock.release()


class Tasks(Protocol):
    """The tasks to which TensorFlow sends functions."""

    def are_answering(self) -> bool:
        """Asks all of them; takes some seconds if one is silent."""

    def stop_waiting(self) -> None:
        """Fails every call that waits for a silent task."""


class _RollCall:
    """Asks the tasks whether they answer before functions are sent to them.

    Guarantees: nobody waits longer than `_SILENCE_SECONDS`. After a wait in
    vain, tasks are asked once in `_GIVEN_UP_SECONDS`, and nobody waits for
    them until all have answered again.
    Threading: any thread. Without a lock: attributes are assigned whole, and
    two threads that ask at the same time do no harm.

    Attributes:
        tasks: The tasks of the present connection; None: there is none.
        postponed: Functions to forget as soon as all tasks answer.
    """

    def __init__(self) -> None:
        self.tasks: Tasks | None = None
        self.postponed: collections.deque[Callable[[], Any]] = (
            collections.deque()
        )
        self._mine = threading.local()
        self._fresh_until = 0.0
        self._is_silent = False
        self._is_given_up = False

    @contextlib.contextmanager
    def excused(self) -> Iterator[None]:
        """Asks for nothing on this thread meanwhile."""
        was_excused = self.is_excused()
        self._mine.is_excused = True
        try:
            yield
        finally:
            self._mine.is_excused = was_excused

    def is_excused(self) -> bool:
        """Returns whether this thread asks for nothing."""
        return getattr(self._mine, "is_excused", False)

    def is_due(self) -> bool:
        """Returns whether this thread has to ask before it goes on."""
        return (
            self.tasks is not None
            and not self.is_excused()
            and time.monotonic() >= self._fresh_until
        )

    def ask(self) -> bool:
        """Returns whether all tasks answer."""
        tasks = self.tasks
        if tasks is None:
            return True
        began_at = time.monotonic()
        # A function may be forgotten at any time, also while asking.
        with self.excused():
            self._is_silent = not tasks.are_answering()
        if not self._is_silent:
            self._is_given_up = False
            now = time.monotonic()
            self._fresh_until = now + max(
                _FRESH_SECONDS, _FRESH_TIMES * (now - began_at)
            )
        return not self._is_silent

    def wait(self) -> None:
        """Waits until all tasks answer."""
        if not self.is_due():
            return
        patience = 0.0 if self._is_given_up else _SILENCE_SECONDS
        deadline = time.monotonic() + patience
        while not self.ask():
            if time.monotonic() >= deadline:
                self._give_up()
                return
        self._forget_postponed()

    def may_forget(self) -> bool:
        """Returns whether to forget a function now; waits once at most."""
        if self._is_silent and self.tasks is not None:
            return False
        return not self.is_due() or self.ask()

    def _forget_postponed(self) -> None:
        # Each once: if a task falls silent meanwhile, they come back.
        for _ in range(len(self.postponed)):
            try:
                forget = self.postponed.popleft()
            except IndexError:  # another thread forgets them, too
                return
            forget()

    def _give_up(self) -> None:
        self._is_given_up = True
        self._fresh_until = time.monotonic() + _GIVEN_UP_SECONDS
        if self.tasks is not None:
            self.tasks.stop_waiting()


# Of the process: TensorFlow has one eager context, and one register in it.
_turns = _Turns()
_roll_call = _RollCall()


def ask_first(tasks: Tasks | None) -> None:
    """Has tasks asked before functions are registered from now on.

    Args:
        tasks: The tasks of a new connection; None: there is none any more.
    """
    _roll_call.tasks = tasks


def asking_nobody() -> contextlib.AbstractContextManager[None]:
    """Registers functions of this thread without asking the tasks.

    For the thread that gives up silent tasks.
    """
    return _roll_call.excused()


def asks_nobody() -> bool:
    """Returns whether this thread is under `asking_nobody`."""
    return _roll_call.is_excused()


@contextlib.contextmanager
def registered_by_nobody_else() -> Iterator[None]:
    """Has other threads wait before they register a function or forget one.

    For some seconds: then they go on. The caller asks no task.

    Threading: any thread; one at a time enters.
    """
    with _roll_call.excused(), _turns.take():
        yield


def in_turn(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that runs under `registered_by_nobody_else`.

    Every trace, that of Keras and of tf.data included, goes through such a
    method of TensorFlow's `Context`. It first waits for silent tasks.
    """

    @functools.wraps(original)
    def register(*args: Any) -> Any:
        _roll_call.wait()
        with _turns.take():
            return original(*args)

    return register


def forgotten_in_turn(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method that forgets a function, to be called at its end.

    It waits for nobody, because any thread may call it at any time: while a
    task is silent, the function is forgotten later. While the interpreter ends
    it is not forgotten at all: no thread can ask the tasks any more, and a task
    that goes on waiting for a chief forgets it with the next one.
    """

    @functools.wraps(original)
    def forget(*args: Any) -> None:
        if sys.is_finalizing():
            return
        if not _roll_call.may_forget():
            _roll_call.postponed.append(functools.partial(forget, *args))
            return
        with _turns.take():
            original(*args)

    return forget
