"""Private TensorFlow API around tracing and running functions.

TensorFlow has no public way to give a thread an executor of its own. Without
one, remote calls from several threads go through the executor that all of
them share, and a failure of one is reported to another.
"""

import contextlib
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from tensorflow.python.autograph.impl import api
from tensorflow.python.eager import cancellation
from tensorflow.python.eager import context
from tensorflow.python.eager import executor


class _QuietExecutor(executor.Executor):
    """One that is deleted without a word.

    Freeing what was on a task that is gone fails, after whoever had it has
    ended; TensorFlow's own then raises in its `__del__`, at nobody.
    """

    # The layout of TensorFlow's: an executor that it made becomes one of these.
    __slots__ = ()

    def __del__(self) -> None:
        # A call of another thread may fail meanwhile.
        with contextlib.suppress(Exception):
            self.clear_error()
            super().__del__()


def _quiet(made: Any) -> Any:
    made.__class__ = _QuietExecutor
    return made


def new_synchronous_executor() -> Any:
    """An executor whose calls return when the remote call has ended.

    Used since TensorFlow 2.20: `executor.new_executor`.
    """
    return _quiet(executor.new_executor(enable_async=False))


@contextlib.contextmanager
def executor_scope(own_executor: Any) -> Iterator[None]:
    """Has the current thread's eager calls go through `own_executor`.

    Used since TensorFlow 2.20: `Context.executor`, as in
    `context.executor_scope`.
    """
    this_context = context.context()
    before = _quiet(this_context.executor)
    try:
        this_context.executor = own_executor
        yield
    finally:
        this_context.executor = before


def forget_error(own_executor: Any) -> None:
    """Has an executor forget an error that its caller has been told.

    It would report it once more when it is deleted, to nobody.

    Used since TensorFlow 2.20: `Executor.clear_error`.
    """
    own_executor.clear_error()


@contextlib.contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Has what a function raises while it is traced arrive as itself.

    AutoGraph replaces an exception whose class it does not know how to make
    by a StagingError, which nobody can catch by its public name.

    Used since TensorFlow 2.20: `autograph.impl.api.StagingError`.
    """
    try:
        yield
    except api.StagingError as error:
        if error.__context__ is None:
            raise
        raise error.__context__ from None


class _Manager(cancellation.CancellationManager):
    """The manager that cancels one call."""

    # TensorFlow's own cannot be referred to weakly.
    __slots__ = ("__weakref__",)


class Cancellation:
    """Ends the calls of functions that are made under it.

    A call that is made after `start` fails at once. What a call fails with is
    a `tf.errors.CancelledError`, or the error of a part of it that another
    task runs.

    Guarded by `_lock`: the managers, when it was started.
    Never call while holding the lock: TensorFlow.

    Used since TensorFlow 2.20: `cancellation.CancellationManager`.
    """

    def __init__(self) -> None:
        """Lets calls be made."""
        self._lock = threading.Lock()
        self._started_at: float | None = None
        # Of the calls that are under way: whoever makes one keeps its own.
        self._managers: weakref.WeakSet[_Manager] = weakref.WeakSet()

    @property
    def started_at(self) -> float | None:
        """When it was started (monotonic, in seconds); None: it was not."""
        return self._started_at

    def new_manager(self) -> Any:
        """Returns the manager of the next call, to be kept until the call ends.

        Each call has one of its own: TensorFlow cancels whatever else is made
        under it when a call fails, if only because its input has come to an
        end.
        """
        manager = _Manager()
        with self._lock:
            self._managers.add(manager)
            is_started = self._started_at is not None
        if is_started:
            manager.start_cancel()
        return manager

    def start(self) -> None:
        """Has all calls that are under way end; waits for none of them."""
        with self._lock:
            if self._started_at is None:
                self._started_at = time.monotonic()
            managers = list(self._managers)
        for manager in managers:
            manager.start_cancel()


def set_message(error: Any, message: str) -> None:
    """Has an exception of TensorFlow say something else.

    Used since TensorFlow 2.20: `OpError._message`.

    Args:
        error: A `tf.errors.OpError`.
        message: What it says from now on.
    """
    error._message = message
