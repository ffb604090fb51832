"""`tfps.CheckpointManager`: the checkpoints of a folder."""

import json
import logging
import os
import posixpath
import re
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_checkpoints as compat
from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.monitoring import events
from tfps_plugin.recovery import committing
from tfps_plugin.recovery import failover
from tfps_plugin.recovery import part_files
from tfps_plugin.recovery import parts as parts_module
from tfps_plugin.recovery import shared_folder
from tfps_plugin.recovery.checkpoint import Checkpoint
from tfps_plugin.recovery.checkpoint import PendingWrite
from tfps_plugin.recovery.parts import Part
from tfps_plugin.recovery.retention import Retention
from tfps_plugin.variables import chief_reads
from tfps_plugin.variables import steps_in_flight

_logger = logging.getLogger("tfps_plugin")

_SCORES = ".tfps-scores.json"
# A checkpoint that cannot be read is one of these; so may be what is wrong with
# the cluster or with the program, which is told apart.
_UNREADABLE = (tf.errors.OpError, OSError, ValueError)
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
        self.checkpoint = checkpoint
        self.directory = os.fspath(directory)
        self._name = checkpoint_name
        self._retention = Retention(max_to_keep, keep_best, larger_is_better)
        self._asynchronous = asynchronous
        self._write_timeout_seconds = write_timeout_seconds
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._writing: threading.Thread | None = None
        tf.io.gfile.makedirs(self.directory)
        committing.discard_all(self.directory)
        self._scores = self._read_scores()
        self._parts: list[Part] = []
        self._boards: list[events.Events] = []

    # What there is.

    @property
    def checkpoints(self) -> list[str]:
        """Prefixes of all checkpoints that are there, oldest first."""
        return [self._prefix(number) for number in self._numbers()]

    @property
    def latest_checkpoint(self) -> str | None:
        """Prefix of the newest checkpoint; None: there is none."""
        numbers = self._numbers()
        return self._prefix(numbers[-1]) if numbers else None

    @property
    def best_checkpoint(self) -> str | None:
        """Prefix of the checkpoint with the best score, if any has one."""
        one = Retention(None, 1, self._retention.larger_is_better)
        best = one.best(self._numbers(), self._scores)
        return self._prefix(best[0]) if best else None

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
            BaseException: What a training step in flight has raised; or, if
                nothing is to be asynchronous, what writing has raised.
        """
        self._wait()
        if checkpoint_number is None:
            checkpoint_number = max(self._numbers(), default=0) + 1
        prefix = self._prefix(checkpoint_number)
        # What a step has raised is the user's, and no failure of writing.
        steps_in_flight.finish()
        try:
            pending = chief_reads.read(lambda: self.checkpoint.snapshot(prefix))
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
        for prefix in self.checkpoints:
            committing.remove(prefix)
        self._scores = {}
        for name in (_SCORES, "checkpoint"):
            path = posixpath.join(self.directory, name)
            if tf.io.gfile.exists(path):
                tf.io.gfile.remove(path)
        if not tf.io.gfile.listdir(self.directory):
            tf.io.gfile.rmtree(self.directory)

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
                pending.write()
                self._written(number, score)
            self._register(pending.parts)
        except BaseException as raised:
            error = raised
            tensorflow_execution.forget_error(executor)
        self._note(pending.prefix, error)

    def _written(self, number: int, score: float | None) -> None:
        if score is not None:
            self._scores[number] = float(score)
        for old in self._retention.to_delete(self._numbers(), self._scores):
            committing.remove(self._prefix(old))
            self._scores.pop(old, None)
        self._write_scores()
        numbers = self._numbers()
        compat.write_checkpoint_state(
            self.directory, [self._prefix(each) for each in numbers]
        )

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
            self.checkpoint.restore(prefix, strict=strict)

        prefix = self._newest_readable(restore)
        if prefix is not None:
            self._register(self.checkpoint.parts_in(prefix))
        return prefix

    def _newest_readable(self, read: Callable[[str], None]) -> str | None:
        """The newest checkpoint that `read` does not fail on; None: no one."""
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
                _logger.error(
                    "The checkpoint %s cannot be read, and the one before it "
                    "is taken: %s",
                    prefix,
                    reason,
                )
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
            part_files.restore(
                parts,
                prefix,
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

    # The folder.

    def _prefix(self, number: int) -> str:
        return posixpath.join(self.directory, f"{self._name}-{number}")

    def _numbers(self) -> list[int]:
        pattern = re.compile(re.escape(self._name) + r"-(\d+)\.index")
        found = map(pattern.fullmatch, tf.io.gfile.listdir(self.directory))
        return sorted(int(match[1]) for match in found if match)

    def _read_scores(self) -> dict[int, float]:
        path = posixpath.join(self.directory, _SCORES)
        try:
            with tf.io.gfile.GFile(path) as file:
                return {int(k): float(v) for k, v in json.load(file).items()}
        except tf.errors.NotFoundError:
            return {}
        except (ValueError, AttributeError, tf.errors.OpError) as error:
            _logger.warning("The scores in %s cannot be read: %s", path, error)
            return {}

    def _write_scores(self) -> None:
        if not self._scores:
            return
        path = posixpath.join(self.directory, _SCORES)
        with tf.io.gfile.GFile(path + ".new", "w") as file:
            json.dump(self._scores, file)
        tf.io.gfile.rename(path + ".new", path, overwrite=True)


def _is_about_the_cluster(error: BaseException) -> bool:
    return isinstance(
        error, tf.errors.OpError
    ) and chief_reads.is_about_the_cluster(error)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]
