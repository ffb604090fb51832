"""Writes of checkpoints and exports that need copies on parameter servers."""

import threading
import time
from collections.abc import Callable

# Interval at which a wait returns to Python by itself.
_WAKE_UP_SECONDS = 1.0


class PendingWrites:
    """Number of writes that go on; a part of a connection.

    A parameter server that leaves takes its copies with it.

    Guarded by `_changed`: the number.
    """

    def __init__(self) -> None:
        """Begins without any."""
        self._changed = threading.Condition()
        self._number = 0

    def begin(self) -> Callable[[], None]:
        """Begins a write.

        Returns:
            A function that ends it; may be called again.
        """
        has_ended = False
        with self._changed:
            self._number += 1

        def end() -> None:
            nonlocal has_ended
            with self._changed:
                if not has_ended:
                    has_ended = True
                    self._number -= 1
                    self._changed.notify_all()

        return end

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until nothing is being written.

        Args:
            timeout_seconds: How long to wait at most.

        Returns:
            Whether nothing is.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while self._number:
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return False
                self._changed.wait(min(left_seconds, _WAKE_UP_SECONDS))
            return True
