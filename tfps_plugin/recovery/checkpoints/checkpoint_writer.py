"""Writer of checkpoints: the background thread, its deadline, its failures."""

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.chief import connection
from tfps_plugin.monitoring import events
from tfps_plugin.recovery.checkpoints.snapshot import PendingWrite
from tfps_plugin.recovery.checkpoints.snapshot import Written
from tfps_plugin.variables.chief.pending_writes import PendingWrites


class CheckpointWriter:
    """Writes one checkpoint at a time, on a thread that ends with it.

    Guarantees: a failure never leaves a partial checkpoint; it is kept in
    `last_error`, logged and published as
    `events.CheckpointFailed`. A complete one is published, too.
    Threading: `write` and `wait` from one thread; `last_error` from any.
    Guarded by `_lock`: the last error.
    """

    def __init__(
        self,
        directory: str,
        timeout_seconds: float,
        boards: Callable[[], Sequence[events.Events]],
    ) -> None:
        """Prepares; starts no thread yet.

        Args:
            directory: The folder of the checkpoints, for error messages.
            timeout_seconds: Longest time that `wait` waits.
            boards: Returns the boards on which failures are published.
        """
        self._directory = directory
        self._timeout_seconds = timeout_seconds
        self._boards = boards
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._pending_writes = connection.present().part(PendingWrites)

    @property
    def last_error(self) -> BaseException | None:
        """The failure of the last checkpoint; None if it was written."""
        with self._lock:
            return self._error

    def write(
        self,
        pending: PendingWrite,
        on_written: Callable[[Written], None],
        *,
        in_background: bool,
    ) -> None:
        """Writes a checkpoint.

        Args:
            pending: The checkpoint.
            on_written: Called on the writing thread once the checkpoint
                exists; what it raises counts as a failure to write.
            in_background: Whether to return at once and write on a thread.
        """
        # At once: a parameter server could leave before the thread runs.
        end = self._pending_writes.begin()
        if not in_background:
            self._write(pending, on_written, end)
            return
        self._thread = threading.Thread(
            target=self._write,
            args=(pending, on_written, end),
            name="tfps-checkpoint-writer",
            daemon=True,
        )
        try:
            self._thread.start()
        except BaseException:
            end()
            raise

    def wait(self) -> None:
        """Waits until the last checkpoint is written or has failed.

        Raises:
            TimeoutError: If that takes longer than the deadline.
        """
        thread = self._thread
        if thread is None:
            return
        thread.join(self._timeout_seconds)
        if thread.is_alive():
            raise TimeoutError(
                "The previous checkpoint is still being written after "
                f"{self._timeout_seconds:.0f} s. Expected the file system to "
                f"be faster. Received: directory={self._directory!r}. Save "
                "less often, or pass a larger write_timeout_seconds to the "
                "manager."
            )
        self._thread = None

    def failed(self, prefix: str, error: BaseException) -> None:
        """Records that a checkpoint could not be written."""
        self._record(error)
        event = events.CheckpointFailed(
            prefix, f"{type(error).__name__}: {first_line(error)}"
        )
        # Publishing also logs; without a board, a new one is there to log.
        for board in self._boards() or [events.Events()]:
            board.publish(event)

    def _write(
        self,
        pending: PendingWrite,
        on_written: Callable[[Written], None],
        end: Callable[[], None],
    ) -> None:
        try:
            self._write_and_tell(pending, on_written)
        finally:
            end()

    def _write_and_tell(
        self, pending: PendingWrite, on_written: Callable[[Written], None]
    ) -> None:
        executor = tensorflow_execution.new_synchronous_executor()
        began_at = time.monotonic()
        try:
            with tensorflow_execution.executor_scope(executor):
                on_written(pending.write())
        except BaseException as error:
            tensorflow_execution.forget_error(executor)
            self.failed(pending.prefix, error)
        else:
            self._record(None)
            event = events.CheckpointWritten(
                pending.prefix, time.monotonic() - began_at
            )
            for board in self._boards():
                board.publish(event)

    def _record(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = error


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message.

    Messages of TensorFlow are shortened: they may go on for pages.
    """
    line = str(error).strip().partition("\n")[0]
    return line if isinstance(error, errors.TfpsError) else line[:300]
