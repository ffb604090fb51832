"""What the chief has to wait for before it looks at the model.

While `fit` runs, workers change the variables behind the back of the thread
that called it. A callback that saves, copies or replaces them there means the
model between two steps; so the chief's reads, and its assignments of more than
a single number, first have the steps in flight come to their end.

Threading: all of it is about the calling thread alone.
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
        # While it waits it may read, too.
        with finishing(None):
            finisher()


@contextlib.contextmanager
def finishing(finisher: Callable[[], None] | None) -> Iterator[None]:
    """Says how the steps in flight of this thread come to their end.

    Args:
        finisher: Called before the chief looks at the model; it has to be
            cheap where nothing is in flight. None: nothing will be.
    """
    before = getattr(_thread_local, "finisher", None)
    _thread_local.finisher = finisher
    try:
        yield
    finally:
        _thread_local.finisher = before
