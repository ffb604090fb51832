"""Has checkpoints leave out what parameter servers write and read themselves.

TensorFlow's checkpoints ask every variable for what it has to save or to
restore. What is saved and restored *apart* answers: nothing. It stays part of
the checkpoint's graph of objects.

Threading: all of it is about the calling thread alone.
"""

import contextlib
import threading
from collections.abc import Iterator

_thread_local = threading.local()


def is_apart() -> bool:
    """Whether variables of parameter servers are to answer: nothing."""
    return bool(getattr(_thread_local, "is_apart", False))


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Has variables of parameter servers answer: nothing."""
    before = is_apart()
    _thread_local.is_apart = True
    try:
        yield
    finally:
        _thread_local.is_apart = before
