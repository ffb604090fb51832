"""Warning about `strategy.run` on the chief, which leaves workers idle."""

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator

from tfps_plugin.cluster.calls import dispatch_context


class NotAStepError(Exception):
    """Ends a trace that has to be made again, without a step.

    Never reaches users.
    """


class ChiefRuns:
    """Warns once of a `strategy.run` that leaves the workers idle.

    Strategies for one machine compute on all devices in `run`. This one
    computes a single replica, where it is called; workers only get what is
    scheduled.

    Threading: any thread.
    Guarded by `_lock`: all attributes.
    """

    def __init__(self) -> None:
        """Starts without a warning and without a trace."""
        self._lock = threading.Lock()
        self._is_told = False
        # Threads that trace functions for workers, once per open trace.
        self._tracing: list[int] = []
        # Those whose function a program has scheduled, and may have a step.
        self._looking: list[int] = []

    @contextlib.contextmanager
    def traced_for_workers(self) -> Iterator[None]:
        """Marks this thread as tracing a function that workers run."""
        with self._marked(self._tracing):
            yield

    @contextlib.contextmanager
    def looking_for_steps(self) -> Iterator[None]:
        """Marks a function as one that may have a synchronous step.

        Raises:
            NotAStepError: From the trace: if it has none, but does what a step
                does otherwise.
        """
        with self._marked(self._looking):
            yield

    @contextlib.contextmanager
    def on_behalf_of(self, thread: int) -> Iterator[None]:
        """Marks this thread as one that traces a part of another one's trace.

        Args:
            thread: Identifier of the other thread, which waits.
        """
        with self._lock:
            lists = [
                threads
                for threads in (self._tracing, self._looking)
                if thread in threads
            ]
        with contextlib.ExitStack() as stack:
            for threads in lists:
                stack.enter_context(self._marked(threads))
            yield

    @contextlib.contextmanager
    def _marked(self, threads: list[int]) -> Iterator[None]:
        thread = threading.get_ident()
        with self._lock:
            threads.append(thread)
        try:
            yield
        finally:
            with self._lock:
                threads.remove(thread)

    @property
    def is_traced_for_workers(self) -> bool:
        """True if this thread traces a function that workers run."""
        with self._lock:
            return threading.get_ident() in self._tracing

    @property
    def is_looking_for_steps(self) -> bool:
        """True if this thread traces a function that may have a step."""
        with self._lock:
            return threading.get_ident() in self._looking

    def note(self, num_workers: int) -> None:
        """Warns if `strategy.run` computes on the chief, the first time.

        Keras's own calls do not count: it runs single batches and eager steps
        on the chief, as documented.
        """
        if dispatch_context.current() is not None or _is_of_keras():
            return
        with self._lock:
            if self._is_told or threading.get_ident() in self._tracing:
                return
            self._is_told = True
        warnings.warn(
            "strategy.run() was called outside "
            "ClusterCoordinator.schedule(), so it computes on the chief while "
            f"{num_workers} workers wait. To use them, let model.fit() run "
            "the steps, or schedule the function that calls strategy.run():"
            "\n\n"
            "    coordinator = tfps.ClusterCoordinator(strategy)\n"
            "    coordinator.schedule(train_step, args=(per_worker_iterator,))",
            stacklevel=2,
        )


def _is_of_keras() -> bool:
    """Returns True if Keras called `strategy.run`, not the program."""
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
