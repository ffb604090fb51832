"""`tfps.CheckpointManager`: the checkpoints of a folder."""

import logging
import os
import threading
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.monitoring import events
from tfps_plugin.recovery import failover
from tfps_plugin.recovery.checkpoints import parts as parts_module
from tfps_plugin.recovery.checkpoints import shared_folder
from tfps_plugin.recovery.checkpoints.checkpoint import Checkpoint
from tfps_plugin.recovery.checkpoints.checkpoint import PendingWrite
from tfps_plugin.recovery.checkpoints.checkpoint import Written
from tfps_plugin.recovery.checkpoints.checkpoint_folder import CheckpointFolder
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.checkpoints.retention import Retention
from tfps_plugin.recovery.incremental import increments
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief import steps_in_flight

_logger = logging.getLogger("tfps_plugin")

# A checkpoint that cannot be read is one of these; so may be what is wrong with
# the cluster or with the program, which is told apart.
# TensorFlow's reader raises an IndexError for a file that is cut off.
_UNREADABLE = (tf.errors.OpError, OSError, ValueError, IndexError)
_NOT_ABOUT_FILES = (
    errors.CheckpointMismatchError,
    tf.errors.ResourceExhaustedError,
    tf.errors.CancelledError,
)


class CheckpointManager:
    """Writes checkpoints to a folder, keeps some, and finds the newest good.

    ```python
    checkpoint = tfps.Checkpoint(model=model)
    manager = tfps.CheckpointManager(checkpoint, "/checkpoints")
    manager.restore_latest()
    for epoch in range(epochs):
        ...
        manager.save()
    manager.sync()
    ```

    `save` takes the values while no training step runs, which is short, and
    writes them while training goes on. Until they are written, a parameter
    server holds its variables twice. From the first checkpoint on, a
    parameter server that is lost is given its values back from the newest
    one; see docs/failure_model.md.

    `tf.train.latest_checkpoint` and `tfps.SidecarEvaluator` know the folder,
    too.

    Threading: one call at a time, from the thread that runs `fit`. Files are
    written on a thread that ends with each checkpoint. Guarded by `_lock`:
    what was written last, who is told of failures, and the last one.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: Any,
        max_to_keep: int | None = 5,
        *,
        checkpoint_name: str = "ckpt",
        asynchronous: bool = True,
        full_every: int = 1,
        keep_best: int = 0,
        larger_is_better: bool = False,
        write_timeout_seconds: float = 3600.0,
    ) -> None:
        """Looks at the folder; removes what a process has left half-written.

        Args:
            checkpoint: What to save.
            directory: The folder; made if it is not there. Any file system
                of `tf.io.gfile`.
            max_to_keep: How many of the newest checkpoints are kept; None:
                all.
            checkpoint_name: What the names of checkpoints begin with.
            asynchronous: Whether training goes on while files are written.
            full_every: Every so many checkpoints one is full; those in
                between are increments, which have the rows of tables that
                have changed since the checkpoint before. TensorFlow knows
                the full ones only. A full one is kept as long as one of its
                increments is.
            keep_best: How many of the best checkpoints are kept beside the
                newest; see `save`.
            larger_is_better: Whether a larger score is a better one.
            write_timeout_seconds: How long `save` and `sync` wait for the
                checkpoint before.

        Raises:
            TypeError: If `checkpoint` is not a `tfps.Checkpoint`.
            ValueError: If an option has no meaning.
        """
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(
                "A tfps.CheckpointManager needs a tfps.Checkpoint; a "
                "tf.train.Checkpoint cannot be written by parameter servers. "
                f"Received: checkpoint={checkpoint!r}"
            )
        if max_to_keep is not None and max_to_keep < 1:
            raise ValueError(
                "max_to_keep must be at least 1, or None to keep all. "
                f"Received: max_to_keep={max_to_keep!r}"
            )
        if full_every < 1:
            raise ValueError(
                "full_every must be at least 1, where every checkpoint is a "
                f"full one. Received: full_every={full_every!r}"
            )
        self.checkpoint = checkpoint
        self.directory = os.fspath(directory)
        self._folder = CheckpointFolder(
            self.directory,
            checkpoint_name,
            Retention(max_to_keep, keep_best, larger_is_better),
        )
        self._full_every = full_every
        self._asynchronous = asynchronous
        self._write_timeout_seconds = write_timeout_seconds
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._writing: threading.Thread | None = None
        # What an increment may follow; used by one thread at a time.
        self._before: Written | None = None
        self._parts: list[Part] = []
        self._boards: list[events.Events] = []

    # What there is.

    @property
    def checkpoints(self) -> list[str]:
        """Prefixes of all checkpoints that are there, oldest first."""
        return list(self._folder.prefixes().values())

    @property
    def latest_checkpoint(self) -> str | None:
        """Prefix of the newest checkpoint; None: there is none."""
        checkpoints = self.checkpoints
        return checkpoints[-1] if checkpoints else None

    @property
    def best_checkpoint(self) -> str | None:
        """Prefix of the checkpoint with the best score, if any has one."""
        return self._folder.best()

    @property
    def last_error(self) -> BaseException | None:
        """Why the last checkpoint could not be written; None: it could."""
        with self._lock:
            return self._error

    # Writing.

    def save(
        self,
        checkpoint_number: int | None = None,
        *,
        score: float | None = None,
    ) -> str:
        """Takes a checkpoint.

        If it is written while training goes on, a failure of that is logged,
        published as `events.CheckpointFailed` and kept in `last_error`: the
        checkpoints before are untouched, and training goes on. `sync` raises
        it.

        Args:
            checkpoint_number: Its number; None: one more than the newest.
            score: How good the model is, for `keep_best`.

        Returns:
            The prefix where it will be.

        Raises:
            TimeoutError: If the checkpoint before is still being written.
            ParameterServerLostError: If a ps is lost, and nothing can give
                it its values back.
            BaseException: What a training step in flight has raised; or, if
                nothing is to be asynchronous, what writing has raised.
        """
        self._wait()
        prefixes = self._folder.prefixes()
        if checkpoint_number is None:
            checkpoint_number = max(prefixes, default=0) + 1
        follows = self._followed(checkpoint_number, prefixes)
        if follows is None:
            prefix = self._folder.full_prefix(checkpoint_number)
        else:
            prefix = self._folder.increment_prefix(
                follows.prefixes[0], checkpoint_number
            )
        # What a step has raised is the user's, and no failure of writing.
        steps_in_flight.finish()
        try:
            pending = chief_reads.read(
                lambda: self.checkpoint.snapshot(
                    prefix, follows=follows, marks_rows=self._full_every > 1
                )
            )
        except (tf.errors.OpError, OSError) as error:
            if not self._asynchronous or _is_about_the_cluster(error):
                raise
            self._note(prefix, error)
            return prefix
        if not self._asynchronous:
            self._write(pending, checkpoint_number, score)
            self.sync()
            return prefix
        self._writing = threading.Thread(
            target=self._write,
            args=(pending, checkpoint_number, score),
            name="tfps-checkpoint-writer",
            daemon=True,
        )
        self._writing.start()
        return prefix

    def delete_all(self) -> None:
        """Deletes all checkpoints of the folder, when they are written."""
        self._wait()
        self._before = None
        self._folder.delete_all()

    def sync(self) -> None:
        """Waits until the checkpoint that was taken last is written.

        Raises:
            TimeoutError: If that takes too long.
            BaseException: Why it could not be written.
        """
        self._wait()
        error = self.last_error
        if error is not None:
            raise error

    def _followed(
        self, number: int, prefixes: Mapping[int, str]
    ) -> Written | None:
        """What the next checkpoint is an increment of; None: it is full."""
        before, self._before = self._before, None
        if before is None or len(before.prefixes) >= self._full_every:
            return None
        # Somebody else may have deleted some of them.
        is_there = set(before.prefixes) <= set(prefixes.values())
        return before if is_there and number > max(prefixes) else None

    def _wait(self) -> None:
        thread = self._writing
        if thread is None:
            return
        thread.join(self._write_timeout_seconds)
        if thread.is_alive():
            raise TimeoutError(
                "The checkpoint before is still being written after "
                f"{self._write_timeout_seconds:.0f} s. Expected the file "
                "system to be faster. Received: directory="
                f"{self.directory!r}. Save less often, or give the manager "
                "write_timeout_seconds=..."
            )
        self._writing = None

    def _write(
        self, pending: PendingWrite, number: int, score: float | None
    ) -> None:
        executor = tensorflow_execution.new_synchronous_executor()
        error: BaseException | None = None
        try:
            with tensorflow_execution.executor_scope(executor):
                written = pending.write()
                self._folder.written(pending.prefix, number, score)
                self._before = written if self._full_every > 1 else None
            self._register(pending.parts)
        except BaseException as raised:
            error = raised
            tensorflow_execution.forget_error(executor)
        self._note(pending.prefix, error)

    def _note(self, prefix: str, error: BaseException | None) -> None:
        """Keeps how a writing has ended, and tells of a failure."""
        with self._lock:
            self._error = error
            boards = self._boards
        if error is None:
            return
        event = events.CheckpointFailed(
            prefix, f"{type(error).__name__}: {_first_line(error)}"
        )
        # A board logs it as well.
        for board in boards or [events.Events()]:
            board.publish(event)

    # Reading.

    def restore_latest(self, *, strict: bool = True) -> str | None:
        """Restores the newest checkpoint that can be read.

        One that is damaged is logged with its name and reason, and the one
        before it is restored.

        Args:
            strict: As for `Checkpoint.restore`.

        Returns:
            Prefix of what was restored; None: the folder has no checkpoint.

        Raises:
            CheckpointUnreadableError: If there are checkpoints, and none can
                be read; it names each with its reason.
            CheckpointMismatchError: If one can be read, but does not fit.
        """
        self._wait()

        def restore(prefix: str) -> None:
            try:
                self.checkpoint.restore(prefix, strict=strict)
            except tf.errors.OpError as error:
                if not _is_about_the_cluster(error):
                    raise
                # A ps that is lost now gets back what it is about to get.
                self._register(self.checkpoint.parts_in(prefix))
                chief_reads.read(
                    lambda: self.checkpoint.restore(prefix, strict=strict)
                )

        prefix = self._newest_readable(restore)
        if prefix is not None:
            self._register(self.checkpoint.parts_in(prefix))
        return prefix

    def _newest_readable(self, read: Callable[[str], None]) -> str | None:
        """The newest checkpoint that `read` does not fail on; None: no one."""
        for prefix in self._folder.without_index():
            _passed_over(prefix, "its index is missing")
        reasons = []
        for prefix in reversed(self.checkpoints):
            try:
                read(prefix)
            except _NOT_ABOUT_FILES:
                raise
            except _UNREADABLE as error:
                if _is_about_the_cluster(error):
                    raise
                reason = f"{type(error).__name__}: {_first_line(error)}"
                reasons.append(f"  {prefix}: {reason}")
                _passed_over(prefix, reason)
                continue
            return prefix
        if reasons:
            raise errors.CheckpointUnreadableError(
                "None of the checkpoints can be read. Expected at least one "
                f"good one in {self.directory!r}. Received:\n"
                + "\n".join(reasons)
                + "\nRestore the folder from a backup, or begin anew in "
                "another one."
            )
        return None

    # As a source of values for parameter servers that were replaced.

    def parts(self) -> list[Part]:
        """What parameter servers hold, and the newest checkpoint has."""
        with self._lock:
            return list(self._parts)

    def restore_parts(self, parts: Sequence[Part]) -> str:
        """Gives parts the values of the newest checkpoint that can be read.

        Returns:
            Its prefix.

        Raises:
            CheckpointUnreadableError: If there is none.
            tf.errors.OpError: If a ps does not answer.
        """

        def restore(prefix: str) -> None:
            devices = sorted(parts_module.by_device(parts))
            increments.restore(
                parts,
                increments.chain_of(prefix),
                by_ps=shared_folder.is_same_file(prefix + ".index", devices),
            )

        prefix = self._newest_readable(restore)
        if prefix is None:
            raise errors.CheckpointUnreadableError(
                f"There is no checkpoint any more in {self.directory!r}; "
                "expected the ones that were written there to stay."
            )
        return prefix

    def _register(self, parts: list[Part]) -> None:
        """Has lost parameter servers be restored from here from now on."""
        strategies = {
            id(s): s
            for part in parts
            if (s := part.variable._distribute_strategy) is not None
        }
        coordinators = [
            getattr(strategy, "_cluster_coordinator", None)
            for strategy in strategies.values()
        ]
        with self._lock:
            self._parts = parts
            self._boards = [c.events for c in coordinators if c is not None]
        for strategy in strategies.values():
            known = failover.of(strategy)
            if known is not None:
                known.add(self)


def _passed_over(prefix: str, reason: str) -> None:
    _logger.error(
        "The checkpoint %s cannot be read, and the one before it is taken: %s",
        prefix,
        reason,
    )


def _is_about_the_cluster(error: BaseException) -> bool:
    return isinstance(
        error, tf.errors.OpError
    ) and chief_reads.is_about_the_cluster(error)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]
