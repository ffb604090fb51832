"""A lock for which threads of Python do not queue up."""

import _thread
import threading
import time


# Typing calls it final; Python documents no such thing, and lets it be.
class ConvoyFreeLock(_thread.RLock):  # type: ignore[misc]
    """As `threading.RLock`, for what is taken often and held for moments.

    A thread that waits for a lock of Python's may get it while another thread
    has the interpreter's own lock. That one then soon waits for the lock in its
    turn, lets go of the interpreter's, and so on: from the first time that two
    threads meet, they change places at each closure, as a convoy (Blasgen and
    others, "The convoy phenomenon", 1979), and a closure costs twice as much.
    Here a thread never has the lock without being the one that runs: it tries,
    and lets another thread run before it tries again.

    Guarantees: as `threading.RLock`; not fair; whoever is interrupted (Ctrl-C)
    while it takes the lock does not have it. To wait for it is not to wait
    idly, so what holds it must neither wait nor call what might.
    """

    # To give it back is left to the base: an interrupt cannot come before what
    # is not written in Python.

    def __enter__(self) -> bool:  # type: ignore[override]
        try:
            while not _try(self, False):
                # Not for any time: it gives the interpreter's lock away, and
                # asks for it again.
                time.sleep(0)
        except BaseException:
            if self.is_mine:
                self.release()
            raise
        return True

    @property
    def is_mine(self) -> bool:
        """Whether the present thread has it."""
        return bool(self._is_owned())  # type: ignore[attr-defined]

    def condition(self) -> threading.Condition:
        """A condition that whoever has the lock may wait for."""
        return threading.Condition(self)


_try = _thread.RLock.acquire
