"""Tells a program that ends normally from one that ends by an exception.

A chief that crashes may be started again and continue, so its cluster must
wait for it. A chief that ends in any other way is done. Python keeps the
exception that it has shown last, also for exit handlers.

A `SystemExit` with any code and Ctrl-C are decisions to end: they count as
normal.
"""

import sys
from types import TracebackType

# Where a program begins: a script or a command, or what `python -m` runs.
_BEGINNINGS = ("__main__", "runpy")


def by_exception() -> bool:
    """Returns whether an uncaught exception is ending the program."""
    error: BaseException | None = getattr(sys, "last_value", None)
    trace: TracebackType | None = getattr(sys, "last_traceback", None)
    # An interactive session continues after an error.
    if error is None or trace is None or hasattr(sys, "ps1"):
        return False
    # Runners of tests and the like keep errors there that they have caught.
    begins_in = trace.tb_frame.f_globals.get("__name__")
    return begins_in in _BEGINNINGS and not isinstance(error, KeyboardInterrupt)
