"""A lock for which threads of Python do not queue up."""

import threading
import time
from typing import cast


class ConvoyFreeLock:
    """As `threading.Lock`, for what is taken often and held for moments.

    A thread that waits for a `threading.Lock` may get it while another thread
    has Python's own lock. That one then soon waits for the lock in its turn,
    lets go of Python's, and so on: from the first time that two threads meet,
    they change places at each closure, as a convoy (Blasgen and others, "The
    convoy phenomenon", 1979), and a closure costs twice as much. Here a thread
    never has the lock without being the one that runs: it tries, and lets
    another thread run before it tries again.

    Guarantees: as `threading.Lock`; not fair. To wait for it is not to wait
    idly, so what holds it must neither wait nor call what might.
    """

    __slots__ = ("_try", "release")

    def __init__(self) -> None:
        """Creates it; nobody has it."""
        lock = threading.Lock()
        # The bound methods: they are called for every closure, several times.
        self._try = lock.acquire
        self.release = lock.release

    def acquire(self, blocking: bool = True) -> bool:
        """Takes it.

        Args:
            blocking: Whether to wait until nobody else has it.

        Returns:
            Whether the present thread has it now.
        """
        while not self._try(False):
            if not blocking:
                return False
            _let_others_run()
        return True

    def __enter__(self) -> None:
        while not self._try(False):
            _let_others_run()

    def __exit__(self, *_: object) -> None:
        self.release()

    def condition(self) -> threading.Condition:
        """A condition that whoever has the lock may wait for."""
        # It asks for no more of a lock than there is here.
        return threading.Condition(cast("threading.Lock", self))


def _let_others_run() -> None:
    # Not for any time: it gives Python's lock away and asks for it again.
    time.sleep(0)
