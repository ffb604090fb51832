"""Knows whether this program ends well or by an exception.

A chief that crashes may be started again and go on: its cluster must wait for
it. A chief that ends otherwise is done. Exit handlers are not told which of
the two it is; only the hook for uncaught exceptions is.

A `SystemExit`, with whatever code, and Ctrl-C are somebody's decision to end:
that is ending well.
"""

import functools
import sys
from collections.abc import Callable
from types import TracebackType

_Hook = Callable[
    [type[BaseException], BaseException, TracebackType | None], None
]

_has_failed = False


def noting(original: _Hook) -> _Hook:
    """Returns a `sys.excepthook` that notes exceptions before it shows them."""

    @functools.wraps(original)
    def hook(
        exception_type: type[BaseException],
        exception: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        note_uncaught(exception_type)
        original(exception_type, exception, traceback)

    return hook


def note_uncaught(exception_type: type[BaseException]) -> None:
    """Notes that an exception was not caught by anybody."""
    global _has_failed
    # A person at a prompt goes on after an error.
    if not issubclass(exception_type, KeyboardInterrupt) and not hasattr(
        sys, "ps1"
    ):
        _has_failed = True


def by_exception() -> bool:
    """Whether the program is ending because of an uncaught exception."""
    return _has_failed
