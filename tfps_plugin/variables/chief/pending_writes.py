"""Writes of checkpoints that need copies on the parameter servers."""

import contextlib
import threading
import time
from collections.abc import Iterator

# Interval at which a wait returns to Python by itself.
_WAKE_UP_SECONDS = 1.0


class PendingWrites:
    """Number of checkpoints that are being written; a part of a connection.

    A parameter server that leaves takes its copies with it.

    Guarded by `_changed`: the number.
    """

    def __init__(self) -> None:
        """Begins without any."""
        self._changed = threading.Condition()
        self._number = 0

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Context in which a checkpoint is written."""
        with self._changed:
            self._number += 1
        try:
            yield
        finally:
            with self._changed:
                self._number -= 1
                self._changed.notify_all()

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until no checkpoint is being written.

        Args:
            timeout_seconds: How long to wait at most.

        Returns:
            Whether none is.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while self._number:
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return False
                self._changed.wait(min(left_seconds, _WAKE_UP_SECONDS))
            return True
