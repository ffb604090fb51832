"""Tells of `strategy.run` on the chief, which leaves the workers idle."""

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator

from tfps_plugin.cluster.calls import dispatch_context


class ChiefRuns:
    """Warns once where a program calls `strategy.run` as with one machine.

    There it computes on all devices. Here it is one replica of whoever calls
    it, and workers are given what is scheduled.

    Threading: any thread.
    Guarded by `_lock`: all attributes.
    """

    def __init__(self) -> None:
        """Has warned of nothing yet."""
        self._lock = threading.Lock()
        self._is_told = False
        # Threads that trace functions for workers, as often as they do.
        self._tracing: list[int] = []

    @contextlib.contextmanager
    def traced_for_workers(self) -> Iterator[None]:
        """Declares that this thread traces a function that workers run."""
        thread = threading.get_ident()
        with self._lock:
            self._tracing.append(thread)
        try:
            yield
        finally:
            with self._lock:
                self._tracing.remove(thread)

    @property
    def is_traced_for_workers(self) -> bool:
        """Whether this thread traces a function that workers run."""
        with self._lock:
            return threading.get_ident() in self._tracing

    def note(self, num_workers: int) -> None:
        """Warns if `strategy.run` computes on the chief, the first time.

        Keras runs single batches and eager steps there, as is documented.

        Args:
            num_workers: How many wait.
        """
        if dispatch_context.current() is not None or _is_of_keras():
            return
        with self._lock:
            if self._is_told or threading.get_ident() in self._tracing:
                return
            self._is_told = True
        warnings.warn(
            "strategy.run() was called outside of "
            "ClusterCoordinator.schedule(): it computes on the chief, and "
            f"{num_workers} workers wait. To use them, have model.fit() run "
            "the steps, or schedule the function that calls strategy.run():"
            "\n\n"
            "    coordinator = tfps.ClusterCoordinator(strategy)\n"
            "    coordinator.schedule(train_step, args=(per_worker_iterator,))",
            stacklevel=2,
        )


def _is_of_keras() -> bool:
    """Whether Keras has called `strategy.run`, and not the program."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inner(frame.f_globals):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("keras.")


def _is_inner(module: dict[str, object]) -> bool:
    name = str(module.get("__name__"))
    return name.startswith("tensorflow.") or name in (
        __name__,
        "tfps_plugin.strategy.extended",
    )
