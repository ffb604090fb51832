"""Results that are still on workers, and that the program may yet fetch."""

import logging
import threading
import weakref
from typing import Any
from typing import Protocol

from tfps_plugin import errors

_logger = logging.getLogger("tfps_plugin.coordinator")


class Kept(Protocol):
    """A result that can be brought to the chief."""

    def is_on(self, worker_index: int) -> bool:
        """Returns whether a part of the result is on a worker."""

    def bring_home(self) -> Any:
        """Brings the result to the chief.

        Raises:
            WorkerLostError: If its worker does not answer.
        """


class KeptResults:
    """The results of scheduled functions, by the worker that they are on.

    Guarded by `_lock`: the results, which it does not keep alive.
    Never call while holding it: a result.
    """

    def __init__(self) -> None:
        """Begins without results."""
        self._lock = threading.Lock()
        self._results: dict[int | None, weakref.WeakSet[Any]] = {}

    def add(self, worker_index: int | None, result: Kept) -> None:
        """Keeps a result in mind.

        Args:
            worker_index: The worker that it is on; None: several are.
            result: The result.
        """
        with self._lock:
            self._results.setdefault(worker_index, weakref.WeakSet()).add(
                result
            )

    def forget(self, worker_index: int) -> None:
        """Forgets the results of a worker that is lost.

        Args:
            worker_index: The worker, before it comes back.
        """
        with self._lock:
            self._results.pop(worker_index, None)

    def bring_home(self, worker_index: int) -> None:
        """Brings all results of a worker to the chief.

        Args:
            worker_index: A worker that is about to leave.
        """
        with self._lock:
            own = list(self._results.pop(worker_index, ()))
            shared = list(self._results.get(None, ()))
        for result in own:
            if not _bring_home(result):
                break  # the worker does not answer
        for result in shared:
            if result.is_on(worker_index):
                # Another worker may be the one that does not.
                _bring_home(result)


def _bring_home(result: Kept) -> bool:
    """Brings a result to the chief; returns whether its worker answers."""
    try:
        result.bring_home()
    except Exception as error:
        # Whoever fetches it learns of the same. The worker leaves all the same.
        _logger.warning(
            "A result of a worker that was to leave is lost: %s", error
        )
        return not isinstance(error, errors.WorkerLostError)
    return True
