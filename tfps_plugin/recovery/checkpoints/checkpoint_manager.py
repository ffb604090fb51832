"""`tfps.CheckpointManager`: the checkpoints of a folder."""

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfps_plugin.recovery.checkpoints.checkpoint import Checkpoint
from tfps_plugin.recovery.checkpoints.checkpoint_folder import CheckpointFolder
from tfps_plugin.recovery.checkpoints.checkpoint_source import CheckpointSource
from tfps_plugin.recovery.checkpoints.checkpoint_writer import CheckpointWriter
from tfps_plugin.recovery.checkpoints.retention import Retention
from tfps_plugin.recovery.checkpoints.snapshot import Written
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief import steps_in_flight


class CheckpointManager:
    """Writes checkpoints to a folder, deletes old ones, restores the newest.

    ```python
    checkpoint = tfps.Checkpoint(model=model)
    manager = tfps.CheckpointManager(checkpoint, "/checkpoints")
    manager.restore_latest()
    for epoch in range(epochs):
        ...
        manager.save()
    manager.sync()
    ```

    `save` copies the values between two training steps, which is short, and
    writes them while training continues. Until they are written, a parameter
    server holds its variables twice. From the first checkpoint on, a
    parameter server that is lost is restored from the newest one; see
    docs/failure_model.md.

    `tf.train.latest_checkpoint` and `tfps.SidecarEvaluator` can read the
    folder.

    Threading: one call at a time, from the thread that runs `fit`. Files are
    written on a thread that ends with each checkpoint.

    Attributes:
        checkpoint: The `tfps.Checkpoint` that is saved.
        directory: The folder, as a string.
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
        """Opens the folder; removes files of interrupted writes.

        Args:
            checkpoint: The objects to save.
            directory: The folder, on any file system of `tf.io.gfile`;
                created if it does not exist.
            max_to_keep: Number of the newest checkpoints to keep; None keeps
                all.
            checkpoint_name: First part of the names of checkpoints.
            asynchronous: Whether training continues while files are written.
            full_every: Interval of full checkpoints. Those in between are
                increments, which hold the rows of tables that have changed
                since the checkpoint before. TensorFlow reads only full ones.
                A full one is kept as long as one of its increments is.
            keep_best: Number of the best checkpoints to keep beside the
                newest; see `save`.
            larger_is_better: Whether a larger score is better.
            write_timeout_seconds: Longest time, in seconds, that `save` and
                `sync` wait for the previous checkpoint.

        Raises:
            TypeError: If `checkpoint` is not a `tfps.Checkpoint`.
            ValueError: If `max_to_keep` or `full_every` is less than 1.
        """
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(
                "A tfps.CheckpointManager needs a tfps.Checkpoint, because "
                "parameter servers cannot write a tf.train.Checkpoint. "
                f"Received: checkpoint={checkpoint!r}. Create it as "
                "tfps.Checkpoint(...), with the same arguments."
            )
        if max_to_keep is not None and max_to_keep < 1:
            raise ValueError(
                "max_to_keep must be at least 1, or None to keep all "
                f"checkpoints. Received: max_to_keep={max_to_keep!r}"
            )
        if full_every < 1:
            raise ValueError(
                "full_every must be at least 1, which makes every checkpoint "
                f"a full one. Received: full_every={full_every!r}"
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
        self._source = CheckpointSource(self._folder)
        self._writer = CheckpointWriter(
            self.directory,
            write_timeout_seconds,
            boards=lambda: self._source.boards,
        )
        # The checkpoint that the next increment follows; set by the writing
        # thread, and read once that has ended.
        self._previous: Written | None = None

    @property
    def checkpoints(self) -> list[str]:
        """Prefixes of all checkpoints in the folder, oldest first."""
        return list(self._folder.prefixes().values())

    @property
    def latest_checkpoint(self) -> str | None:
        """Prefix of the newest checkpoint; None if there is none."""
        checkpoints = self.checkpoints
        return checkpoints[-1] if checkpoints else None

    @property
    def best_checkpoint(self) -> str | None:
        """Prefix of the checkpoint with the best score; None without scores."""
        return self._folder.best()

    @property
    def last_error(self) -> BaseException | None:
        """The failure of the last checkpoint; None if it was written."""
        return self._writer.last_error

    def save(
        self,
        checkpoint_number: int | None = None,
        *,
        score: float | None = None,
    ) -> str:
        """Takes a checkpoint.

        A failure to write in the background is logged, published as
        `events.CheckpointFailed` and kept in `last_error`. Earlier checkpoints
        stay intact and training continues. `sync` raises the failure.

        Args:
            checkpoint_number: Number of the checkpoint; None takes the
                newest number plus one.
            score: Quality of the model, for `keep_best`.

        Returns:
            The prefix under which the checkpoint is written.

        Raises:
            TimeoutError: If the previous checkpoint is still being written.
            ParameterServerLostError: If a ps is lost and cannot be restored.
            BaseException: What a training step in flight raised; or, with
                `asynchronous=False`, what writing raised.
        """
        self._writer.wait()
        prefixes = self._folder.prefixes()
        number = checkpoint_number
        if number is None:
            number = max(prefixes, default=0) + 1
        follows = self._followed_by(number, prefixes)
        if follows is None:
            prefix = self._folder.full_prefix(number)
        else:
            prefix = self._folder.increment_prefix(follows.prefixes[0], number)
        # An error of a training step is the user's, not a failure to write.
        steps_in_flight.finish()
        try:
            pending = chief_reads.read(
                lambda: self.checkpoint.snapshot(
                    prefix, follows=follows, marks_rows=self._full_every > 1
                )
            )
        except (tf.errors.OpError, OSError) as error:
            if not self._asynchronous or chief_reads.is_about_the_cluster(
                error
            ):
                raise
            self._writer.failed(prefix, error)
            return prefix

        def on_written(written: Written) -> None:
            self._folder.written(prefix, number, score)
            self._previous = written if self._full_every > 1 else None
            self._source.register(pending.parts)

        self._writer.write(
            pending, on_written, in_background=self._asynchronous
        )
        if not self._asynchronous:
            self.sync()
        return prefix

    def delete_all(self) -> None:
        """Deletes all checkpoints of the folder, and the folder if empty.

        Raises:
            TimeoutError: If the last checkpoint is still being written.
        """
        self._writer.wait()
        self._previous = None
        self._folder.delete_all()

    def sync(self) -> None:
        """Waits until the last checkpoint is written.

        Raises:
            TimeoutError: If that takes longer than `write_timeout_seconds`.
            BaseException: The reason why it could not be written.
        """
        self._writer.wait()
        error = self.last_error
        if error is not None:
            raise error

    def restore_latest(self, *, strict: bool = True) -> str | None:
        """Restores the newest checkpoint that can be read.

        A damaged one is logged with its name and reason, and the one before
        it is restored.

        Args:
            strict: As for `Checkpoint.restore`.

        Returns:
            The prefix of the restored checkpoint; None if the folder has no
            checkpoint.

        Raises:
            TimeoutError: If the last checkpoint is still being written.
            CheckpointUnreadableError: If there are checkpoints, but none can
                be read; it names each with its reason.
            CheckpointMismatchError: If one can be read, but does not fit the
                program.
        """
        self._writer.wait()

        def restore(prefix: str) -> None:
            try:
                self.checkpoint.restore(prefix, strict=strict)
            except tf.errors.OpError as error:
                if not chief_reads.is_about_the_cluster(error):
                    raise
                # A ps was lost: recover it from the checkpoint at hand.
                self._source.register(self.checkpoint.parts_in(prefix))
                chief_reads.read(
                    lambda: self.checkpoint.restore(prefix, strict=strict)
                )

        prefix = self._source.read_newest(restore)
        if prefix is not None:
            self._source.register(self.checkpoint.parts_in(prefix))
        return prefix

    def _followed_by(
        self, number: int, prefixes: Mapping[int, str]
    ) -> Written | None:
        """Returns the base of the next increment; None for a full one."""
        previous, self._previous = self._previous, None
        if previous is None or len(previous.prefixes) >= self._full_every:
            return None
        # Another process may have deleted some of them.
        is_there = set(previous.prefixes) <= set(prefixes.values())
        return previous if is_there and number > max(prefixes) else None
