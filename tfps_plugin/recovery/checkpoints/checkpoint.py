"""`tfps.Checkpoint`: one checkpoint, written and read by parameter servers."""

import contextlib
import os
import posixpath
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_checkpoints as compat
from tfps_plugin.recovery.checkpoints import checkpoint_entries
from tfps_plugin.recovery.checkpoints import committing
from tfps_plugin.recovery.checkpoints import parts as parts_module
from tfps_plugin.recovery.checkpoints import shared_folder
from tfps_plugin.recovery.checkpoints import untracked_state
from tfps_plugin.recovery.checkpoints.checkpoint_entries import Entries
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.checkpoints.snapshot import PendingWrite
from tfps_plugin.recovery.checkpoints.snapshot import Snapshot
from tfps_plugin.recovery.checkpoints.snapshot import Written
from tfps_plugin.recovery.incremental import increments
from tfps_plugin.recovery.incremental import merging
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.saving import apart

_CHIEF = "/device:CPU:0"


class Checkpoint(tf.train.Checkpoint):
    """Saves and restores programs whose variables are on parameter servers.

    ```python
    checkpoint = tfps.Checkpoint(model=model)
    path = checkpoint.write("/checkpoints/first")
    ...
    checkpoint.restore(path)
    ```

    It is a `tf.train.Checkpoint` with the same constructor, and writes files
    that TensorFlow reads: each table appears as one tensor. In addition:

    - every parameter server writes and reads its own rows, all at the same
      time and without the chief, if they see the chief's files; if not, rows
      pass through the chief in slices of 64 MB;
    - a checkpoint exists whole or not at all, whenever a process dies;
    - the states of a Keras model's metrics and random generators are part of
      it;
    - it can be restored into any number of shards and parameter servers, and
      into or from a program of one process;
    - a checkpoint that does not fit the program raises an error that lists
      the differences, before anything is changed.

    Source: the format is that of TensorFlow's `BundleWriter`
    (tensorflow/core/util/tensor_bundle), with one slice for each shard.

    Args:
        root: The root object to save; None if objects are given by name.
        **kwargs: The objects to save, such as `model=model`.

    Threading: one call at a time, from the thread that runs `fit`. Training
    steps in flight are finished first.
    """

    # Writing; `__init__`, `write` and `save` are those of TensorFlow.

    def _write(self, file_prefix: Any, options: Any = None) -> str:
        """Writes a checkpoint, for `write`, `save` and TensorFlow's managers.

        Raises:
            tf.errors.OpError: If it cannot be written. An earlier checkpoint
                of the same name stays intact.
            BaseException: What a training step in flight raised.
        """
        pending = self.snapshot(file_prefix)
        pending.write()
        if options is not None:
            compat.execute_write_callbacks(options, pending.prefix)
        return pending.prefix

    def snapshot(
        self,
        file_prefix: Any,
        *,
        follows: Written | None = None,
        marks_rows: bool = False,
    ) -> PendingWrite:
        """Takes the values of a checkpoint; training may then continue.

        Until they are written, a parameter server holds its variables twice;
        for an increment, only the rows that have changed.

        Args:
            file_prefix: As for `write`.
            follows: The checkpoint before, for an increment; None for a full
                checkpoint.
            marks_rows: Whether an increment may follow this one.

        Returns:
            The values, to be written.

        Raises:
            tf.errors.OpError: If a ps does not answer, or the chief cannot
                write its own values.
            BaseException: What a training step in flight raised.
        """
        prefix = os.fspath(file_prefix)
        steps_in_flight.finish()
        folder = posixpath.dirname(prefix) or "."
        tf.io.gfile.makedirs(folder)
        unfinished = committing.begin(prefix)
        try:
            with self._untracked():
                own = self._write_own(f"{unfinished}-own")
            parts = self._parts(compat.object_graph_of(own))
            by_ps = shared_folder.is_seen_by(
                folder, sorted(parts_module.by_device(parts))
            )
            if follows is None:
                # A reader such as an evaluator may have no optimizer that
                # catches up. Increments hold only rows that have changed.
                for part in parts:
                    part.variable.finish_steps()
            snapshot = Snapshot(parts, follows.marks if follows else {})
        except BaseException:
            committing.discard(unfinished)
            raise
        return PendingWrite(
            prefix, parts, unfinished, own, snapshot, follows, by_ps, marks_rows
        )

    def _write_own(self, prefix: str) -> str:
        """Writes the graph of objects, and all values that no ps holds."""
        options = tf.train.CheckpointOptions(experimental_io_device=_CHIEF)
        with apart.apart():
            return str(super()._write(prefix, options))

    @contextlib.contextmanager
    def _untracked(self) -> Iterator[None]:
        """Adds metrics and seeds to the graph of objects."""
        self.__dict__.pop("tfps", None)
        self.tfps: Any = untracked_state.of(self)
        try:
            yield
        finally:
            del self.tfps

    def _parts(self, graph: Any) -> list[Part]:
        with self._untracked():
            return _parts_of(checkpoint_entries.find(self, graph))

    # Reading.

    def restore(
        self, save_path: Any, options: Any = None, *, strict: bool = True
    ) -> Any:
        """Assigns the values of a checkpoint to the objects.

        Args:
            save_path: The prefix, from `write` or
                `tf.train.latest_checkpoint`; None does nothing, as in
                TensorFlow.
            options: `tf.train.CheckpointOptions`.
            strict: Whether the checkpoint must have a value for every
                variable of the program, and no others. If not, variables
                without a value keep theirs, and variables that are created
                later, such as an optimizer's slots, get their value then.
                Shapes and dtypes must agree either way.

        Returns:
            TensorFlow's status object.

        Raises:
            CheckpointMismatchError: If checkpoint and program do not fit;
                nothing was changed.
            CheckpointUnreadableError: If it is an increment, and a checkpoint
                that it needs is gone.
            tf.errors.OpError: If a file cannot be read.
            BaseException: What a training step in flight raised.
        """
        if save_path is None:
            return super().restore(save_path, options)
        prefix = os.fspath(save_path)
        steps_in_flight.finish()
        prefixes = increments.chain_of(prefix)
        readers = [compat.open_reader(each) for each in prefixes]
        graph = compat.read_object_graph(readers[-1])
        if checkpoint_entries.has_save_counter(graph):
            _ = self.save_counter  # TensorFlow creates it on the first access.
        with self._untracked():
            entries = checkpoint_entries.find(self, graph)
            checkpoint_entries.require_match(
                entries, readers, strict=strict, prefix=prefix
            )
        if len(prefixes) > 1 and _needs_whole(
            entries, readers[-1], strict=strict
        ):
            return self._restore_merged(prefixes, options, strict=strict)
        parts = _parts_of(entries)
        devices = sorted(parts_module.by_device(parts))
        by_ps = shared_folder.is_same_file(prefix + ".index", devices)
        options = tf.train.CheckpointOptions(experimental_io_device=_CHIEF)
        with self._untracked(), apart.apart():
            status = super().read(prefix, options)
        increments.restore(parts, prefixes, by_ps=by_ps)
        return status

    def _restore_merged(
        self, prefixes: list[str], options: Any, *, strict: bool
    ) -> Any:
        """Restores an increment from a temporary full checkpoint."""
        with contextlib.ExitStack() as stack:
            folder = tempfile.mkdtemp(prefix="tfps-merged-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            merged = os.path.join(folder, "merged")
            merging.merge(prefixes, merged)
            status = self.restore(merged, options, strict=strict)
            if not strict:
                # Variables that are created later still need the files.
                deferred = compat.deferred_restorations(status)
                weakref.finalize(deferred, stack.pop_all().close)
        return status

    def read(self, save_path: Any, options: Any = None) -> Any:
        """Restores as `restore(..., strict=False)` does.

        Args:
            save_path: As for `restore`.
            options: As for `restore`.

        Returns:
            TensorFlow's status object.

        Raises:
            CheckpointMismatchError: If shapes or dtypes do not agree.
            tf.errors.OpError: If a file cannot be read.
        """
        return self.restore(save_path, options, strict=False)

    def parts_in(self, prefix: str) -> list[Part]:
        """Returns the parts on parameter servers that a checkpoint has.

        Args:
            prefix: Prefix of the checkpoint.

        Returns:
            The parts of all variables that have a value in the checkpoint.

        Raises:
            tf.errors.OpError: If the checkpoint cannot be read.
        """
        return self._parts(compat.object_graph_of(prefix))


def _parts_of(entries: Entries) -> list[Part]:
    return [
        part
        for entry in entries.found
        for part in parts_module.parts_of(
            entry.key, checkpoint_entries.value_of(entry.living)
        )
    ]


def _needs_whole(entries: Entries, increment: Any, *, strict: bool) -> bool:
    """Returns whether TensorFlow must restore a table stored in part.

    That is a table of a program of one process, or one not created yet.
    """
    for entry in entries.found:
        if increment.has_tensor(entry.key):
            continue
        if entry.living is None:
            if not strict:
                return True
        elif not parts_module.parts_of(
            entry.key, checkpoint_entries.value_of(entry.living)
        ):
            return True
    return False
