"""Lock whose waiting threads do not form a convoy."""

import _thread
import threading
import time


# Type stubs call it final; Python itself allows subclasses.
class ConvoyFreeLock(_thread.RLock):  # type: ignore[misc]
    """A `threading.RLock` for state that is locked often, for moments only.

    A thread that waits for a lock of Python may acquire it while another
    thread holds the global interpreter lock (GIL). That thread soon waits for
    the lock in turn, releases the GIL, and so on. Once two threads have met,
    they switch at every closure: a lock convoy (Blasgen et al., "The convoy
    phenomenon", 1979), which doubles the cost of a closure. With this lock a
    thread never holds the lock without the GIL: it tries to acquire the lock,
    and lets another thread run before it tries again.

    Guarantees: as `threading.RLock`; not fair; a thread that is interrupted
    (Ctrl-C) while it acquires the lock does not hold it. Waiters spin, so the
    holder must neither wait nor call anything that might.
    """

    # The base class releases the lock: it is written in C, so no interrupt can
    # come in between.

    def __enter__(self) -> bool:  # type: ignore[override]
        try:
            while not _try(self, False):
                # Releases the GIL and acquires it again, without a delay.
                time.sleep(0)
        except BaseException:
            if self.is_mine:
                self.release()
            raise
        return True

    @property
    def is_mine(self) -> bool:
        """True if the current thread holds the lock."""
        return bool(self._is_owned())  # type: ignore[attr-defined]

    def condition(self) -> threading.Condition:
        """Returns a new condition of this lock."""
        return threading.Condition(self)


_try = _thread.RLock.acquire
