"""Private TensorFlow API: the registration of functions with the tasks.

Every function traced on the chief is registered with its eager context, which
sends it to every task that it knows. During a change of the membership, it
knows tasks that it can no longer reach, and others that it does not send to
yet: a function that is registered at that time fails ("Client for target ...
not found"), or stays unknown to a task for good.
"""

import contextlib
import functools
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

# A change takes milliseconds, unless a task hangs.
_PATIENCE_SECONDS = 10.0


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


# One per process: TensorFlow has one eager context with one registry.
_turns = _Turns()


def registered_by_nobody_else() -> contextlib.AbstractContextManager[None]:
    """Makes other threads wait before they register or forget a function.

    After some seconds they go on.

    Threading: any thread; one at a time enters.
    """
    return _turns.take()


def in_turn(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that runs under `registered_by_nobody_else`.

    Every trace, including those of Keras and tf.data, is registered and removed
    by such methods of TensorFlow's `Context`.
    """

    @functools.wraps(original)
    def register(*args: Any) -> Any:
        with _turns.take():
            return original(*args)

    return register
