"""Private TensorFlow API: the registration of functions with the tasks.

Whatever is traced on the chief, by whomever, is registered with its eager
context, which sends it to every task that it knows. While the membership
changes, it knows tasks that it cannot reach any more, and others that it does
not send to yet: a function that is registered meanwhile fails ("Client for
target ... not found"), or stays unknown to a task for good.
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
    """One at a time registers functions or changes the membership.

    Guarantees: nobody waits longer than `_PATIENCE_SECONDS`, and for one who
    takes longer than that, nobody waits a second time: they then go on
    without having their turn.
    Guarded by `_lock`: nothing; it is the turn. A thread may take it again.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Written by who has the turn, or waits for it in vain; both are
        # single assignments.
        self._number = 0
        self._given_up = -1

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """The caller's turn."""
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


# Of the process: TensorFlow has one eager context, and one register in it.
_turns = _Turns()


def registered_by_nobody_else() -> contextlib.AbstractContextManager[None]:
    """Has other threads wait before they register a function or forget one.

    For some seconds: then they go on.

    Threading: from any thread; one at a time gets in.
    """
    return _turns.take()


def in_turn(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that runs under `registered_by_nobody_else`.

    Every trace, that of Keras and of tf.data included, and the end of each
    goes through such a method of TensorFlow's `Context`.
    """

    @functools.wraps(original)
    def register(*args: Any) -> Any:
        with _turns.take():
            return original(*args)

    return register
