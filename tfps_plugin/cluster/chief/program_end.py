"""Tells a program that ends normally from one that ends by an exception.

A chief that crashes may be started again and continue, so its cluster must
wait for it. A chief that ends in any other way is done. Exit handlers cannot
see the difference; only the hook for uncaught exceptions can.

A `SystemExit` with any code and Ctrl-C are decisions to end: they count as
normal.
"""

import functools
import sys
from collections.abc import Callable
from types import TracebackType

from tfps_plugin.cluster.chief import this_process

_Hook = Callable[
    [type[BaseException], BaseException, TracebackType | None], None
]


def noting(original: _Hook) -> _Hook:
    """Returns a `sys.excepthook` that records exceptions, then shows them."""

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
    """Records an uncaught exception."""
    # An interactive session continues after an error.
    if not issubclass(exception_type, KeyboardInterrupt) and not hasattr(
        sys, "ps1"
    ):
        this_process.state.has_failed = True


def by_exception() -> bool:
    """Returns whether an uncaught exception is ending the program."""
    return this_process.state.has_failed
