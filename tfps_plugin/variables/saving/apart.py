"""Leaves out of checkpoints what parameter servers write and read themselves.

TensorFlow's checkpoints ask every variable what to save or restore. Variables
that are saved and restored *apart* answer: nothing. They stay part of the
checkpoint's object graph.

Threading: everything here concerns the calling thread only.
"""

import contextlib
import threading
from collections.abc import Iterator

_thread_local = threading.local()


def is_apart() -> bool:
    """Returns whether variables on parameter servers save nothing here."""
    return bool(getattr(_thread_local, "is_apart", False))


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Makes variables on parameter servers save and restore nothing."""
    before = is_apart()
    _thread_local.is_apart = True
    try:
        yield
    finally:
        _thread_local.is_apart = before
