"""Workers that something needs, such as the steps that they make together."""

import collections
import threading
import time
from collections.abc import Callable
from collections.abc import Collection

# Interval at which a wait returns to Python by itself.
_WAKE_UP_SECONDS = 1.0


class Use:
    """Some workers, kept until they are no longer needed.

    Threading: safe from several threads.

    Attributes:
        workers: Indices of the workers, ascending.
        has_ended: Whether it was released.
    """

    def __init__(
        self, workers: Collection[int], end: Callable[["Use"], None]
    ) -> None:
        """Begins the use; see `Uses.begin`."""
        self.workers = sorted(workers)
        # Guarded by the lock of the `Uses`.
        self.has_ended = False
        self._end = end

    def release(self) -> None:
        """Ends the use; a second call does nothing."""
        self._end(self)

    def __del__(self) -> None:
        """Ends the use of a program that was interrupted."""
        self.release()


class Uses:
    """Number of uses of each worker.

    Guarantees: a worker that is free stays so, unless `begin` is called.
    Guarded by `_lock`: the numbers. It is reentrant, because a use may be
    garbage collected anywhere.
    """

    def __init__(self) -> None:
        """Begins without uses."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._numbers: collections.Counter[int] = collections.Counter()

    def begin(self, workers: Collection[int]) -> Use:
        """Keeps workers.

        Args:
            workers: Indices of the workers.

        Returns:
            The use, which ends when it is released or forgotten.
        """
        with self._lock:
            self._numbers.update(workers)
        return Use(workers, self._ended)

    def wait_until_free(
        self, worker_index: int, timeout_seconds: float
    ) -> bool:
        """Waits until nothing uses a worker.

        Args:
            worker_index: The worker.
            timeout_seconds: How long to wait at most.

        Returns:
            Whether it is free.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            while self._numbers[worker_index]:
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return False
                self._changed.wait(min(left_seconds, _WAKE_UP_SECONDS))
            return True

    def _ended(self, use: Use) -> None:
        with self._lock:
            if use.has_ended:
                return
            use.has_ended = True
            self._numbers.subtract(use.workers)
            self._changed.notify_all()
