"""Steps that the chief has to wait for before it looks at the model.

While `fit` runs, workers change the variables behind the back of the thread
that called it. A callback that saves, copies or replaces them expects the model
between two steps. So the chief first waits for the steps in flight when it
reads a variable, or assigns more than a single number. A single number, such as
a learning rate, is meant for later steps. But if workers make steps together,
all parameter servers have to see it from the same step on.

Threading: everything here concerns the calling thread only.
"""

import contextlib
import threading
from collections.abc import Callable
from collections.abc import Iterator

_thread_local = threading.local()


def finish() -> None:
    """Waits until no step is in flight that this thread is responsible for.

    Raises:
        BaseException: What a step raised.
    """
    finisher: Callable[[], None] | None = getattr(
        _thread_local, "finisher", None
    )
    if finisher is not None:
        # The finisher may read variables, too.
        with finishing(None):
            finisher()


def may_be_in_flight() -> bool:
    """Returns whether this thread is in `fit`, `evaluate` or `predict`."""
    return getattr(_thread_local, "may_be_in_flight", False)


def finish_synchronous() -> None:
    """Waits as `finish` does, but only for steps that workers make together.

    Raises:
        BaseException: What a step raised.
    """
    if getattr(_thread_local, "are_synchronous", False):
        finish()


@contextlib.contextmanager
def finishing(
    finisher: Callable[[], None] | None, *, are_synchronous: bool = False
) -> Iterator[None]:
    """Sets how to finish the steps that this thread has in flight.

    Args:
        finisher: Called before the chief looks at the model; it must be cheap
            if nothing is in flight. None if nothing will be in flight.
        are_synchronous: Whether workers make these steps together.
    """
    before = (
        getattr(_thread_local, "finisher", None),
        getattr(_thread_local, "are_synchronous", False),
        may_be_in_flight(),
    )
    _thread_local.finisher = finisher
    _thread_local.are_synchronous = are_synchronous
    # While a finisher runs, too.
    _thread_local.may_be_in_flight = before[2] or finisher is not None
    try:
        yield
    finally:
        (
            _thread_local.finisher,
            _thread_local.are_synchronous,
            _thread_local.may_be_in_flight,
        ) = before
