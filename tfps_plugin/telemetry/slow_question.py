"""A question to the cluster that may hang, and its latest answer."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

_logger = logging.getLogger("tfps_plugin.telemetry")

# Longest time that a viewer waits for the answer, as for reports of tasks.
_WAIT_SECONDS = 0.25
# An answer that is older says nothing of now.
_AGE_SECONDS = 5.0

T = TypeVar("T")


class Answered(NamedTuple, Generic[T]):
    """An answer.

    Attributes:
        value: The answer.
        at: When it came, by `time.monotonic`.
    """

    value: T
    at: float


class SlowQuestion(Generic[T]):
    """A question that is asked on a thread of its own.

    TensorFlow's reads have no deadline: while a task hangs, so does the thread.
    Nobody waits for it then, and there is never a second one.

    Threading: one thread at a time. Guarded by `_lock`: the latest answer.
    """

    def __init__(
        self,
        name: str,
        *,
        wait_seconds: float = _WAIT_SECONDS,
        age_seconds: float = _AGE_SECONDS,
    ) -> None:
        """Asks nothing yet.

        Args:
            name: What is asked for, for the thread and the log.
            wait_seconds: Longest time to wait for an answer.
            age_seconds: How old the latest answer may be, if there is none yet.
        """
        self._name = name
        self._wait_seconds = wait_seconds
        self._age_seconds = age_seconds
        self._lock = threading.Lock()
        self._latest: Answered[T] | None = None
        self._thread: threading.Thread | None = None

    def ask(self, function: Callable[[], T]) -> Answered[T] | None:
        """Asks, unless the last question is still open; waits for a moment.

        Args:
            function: Returns the answer; called on another thread.

        Returns:
            The latest answer; None if there is none, or it is too old, or the
            function has raised an exception.
        """
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run,
                args=(function,),
                name=f"tfps-{self._name}",
                daemon=True,
            )
            self._thread.start()
        self._thread.join(self._wait_seconds)
        with self._lock:
            latest = self._latest
        if latest is None or time.monotonic() - latest.at > self._age_seconds:
            return None
        return latest

    def _run(self, function: Callable[[], T]) -> None:
        latest = None
        try:
            latest = Answered(function(), time.monotonic())
        # A task was lost, or the strategy has ended. The rest can be seen.
        except Exception:
            _logger.debug("The %s are unknown.", self._name, exc_info=True)
        with self._lock:
            self._latest = latest
