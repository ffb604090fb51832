"""Private TensorFlow API around tracing and running functions.

TensorFlow has no public way to give a thread its own executor. Without one,
remote calls of all threads share one executor, and the failure of one call is
reported to another thread.
"""

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.autograph.impl import api
from tensorflow.python.eager import cancellation
from tensorflow.python.eager import context
from tensorflow.python.eager import execute
from tensorflow.python.eager import executor


class _QuietExecutor(executor.Executor):
    """Executor whose deletion never logs an error.

    Freeing resources on a lost task fails, after their owner has ended.
    TensorFlow's own executor then raises in its `__del__`, without a caller.
    """

    # Same layout as TensorFlow's: its executors are converted to this class.
    __slots__ = ()

    def __del__(self) -> None:
        # A call of another thread may fail at the same time.
        with contextlib.suppress(Exception):
            self.clear_error()
            super().__del__()


class _BorrowedExecutor(executor.Executor):
    """Another owner's executor, whose deletion waits for nothing.

    TensorFlow's own class waits for all calls of the executor. Those of the
    shared one include the freeing of tensors on a worker that hangs.
    """

    # Same layout as TensorFlow's: its executors are converted to this class.
    __slots__ = ()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.clear_error()
            pywrap_tfe.TFE_DeleteExecutor(self.handle())


def new_synchronous_executor() -> Any:
    """Returns an executor whose calls return when the remote call has ended.

    Used since TensorFlow 2.20: `executor.new_executor`.
    """
    made = executor.new_executor(enable_async=False)
    made.__class__ = _QuietExecutor
    return made


@contextlib.contextmanager
def executor_scope(own_executor: Any) -> Iterator[None]:
    """Makes the current thread's eager calls use `own_executor`.

    Used since TensorFlow 2.20: `Context.executor`, as in
    `context.executor_scope`; `pywrap_tfe.TFE_DeleteExecutor`.
    """
    this_context = context.context()
    before = this_context.executor
    before.__class__ = _BorrowedExecutor
    try:
        this_context.executor = own_executor
        yield
    finally:
        this_context.executor = before


@contextlib.contextmanager
def own_executor() -> Iterator[None]:
    """Gives the current thread's eager calls an executor of their own.

    The calls have ended at the end, and a call that has failed raises here at
    the latest. The thread's next calls do not learn of it.

    Used since TensorFlow 2.20: see `executor_scope`; `Executor.wait`.
    """
    own = new_synchronous_executor()
    try:
        with executor_scope(own):
            yield
            own.wait()
    except BaseException:
        own.clear_error()
        raise


def forget_error(own_executor: Any) -> None:
    """Makes an executor forget an error that its caller already knows.

    Otherwise its deletion would report the error once more, without a caller.

    Used since TensorFlow 2.20: `Executor.clear_error`.
    """
    own_executor.clear_error()


@contextlib.contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Lets exceptions of a function pass unchanged through tracing.

    AutoGraph replaces an exception of a class that it cannot construct by a
    StagingError, which has no public name.

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

    # TensorFlow's own class does not support weak references.
    __slots__ = ("__weakref__",)


class Cancellation:
    """Cancels the calls of functions that are made under it.

    A call that is made after `start` fails at once. Calls fail with a
    `tf.errors.CancelledError`, or with the error of a part that another task
    runs.

    Guarded by `_lock`: the managers, when it was started.
    Never call while holding the lock: TensorFlow.

    Used since TensorFlow 2.20: `cancellation.CancellationManager`.
    """

    def __init__(self) -> None:
        """Starts without calls."""
        self._lock = threading.Lock()
        self._started_at: float | None = None
        # Managers of running calls; each caller keeps its own alive.
        self._managers: weakref.WeakSet[_Manager] = weakref.WeakSet()

    @property
    def started_at(self) -> float | None:
        """Time (monotonic, in seconds) of its start; None: not started."""
        return self._started_at

    def new_manager(self) -> Any:
        """Returns the manager of the next call, to be kept until the call ends.

        Each call has its own manager: if a call fails, even because its input
        has ended, TensorFlow cancels everything else under the same manager.
        """
        manager = _Manager()
        with self._lock:
            self._managers.add(manager)
            is_started = self._started_at is not None
        if is_started:
            manager.start_cancel()
        return manager

    def start(self) -> None:
        """Cancels all running calls; waits for none of them."""
        with self._lock:
            if self._started_at is None:
                self._started_at = time.monotonic()
            managers = list(self._managers)
        for manager in managers:
            manager.start_cancel()

    def ignored_by(self) -> frozenset[Any]:
        """Returns a key of each call that was cancelled and has not ended.

        TensorFlow itself cancels a call when one of its parts fails. A part
        that is being sent at that moment is never cancelled.

        Used since TensorFlow 2.20: `execute.execute_with_cancellation` and the
        name of its argument; `CancellationManager.is_cancelled`.
        """
        with self._lock:
            managers = list(self._managers)
        cancelled = frozenset(each for each in managers if each.is_cancelled)
        # An exception that somebody keeps holds its managers as well. Only the
        # stacks of the threads tell which calls have not returned.
        return cancelled & _managers_of_calls() if cancelled else cancelled


def _managers_of_calls() -> frozenset[Any]:
    """Returns the managers of the calls that threads wait for."""
    return frozenset(
        frame.f_locals.get("cancellation_manager")
        for frame in sys._current_frames().values()
        if frame.f_code is execute.execute_with_cancellation.__code__
    )


def set_message(error: Any, message: str) -> None:
    """Changes the message of an exception of TensorFlow.

    Used since TensorFlow 2.20: `OpError._message`.

    Args:
        error: A `tf.errors.OpError`.
        message: The new message.
    """
    error._message = message
