"""`tfps.Checkpoint`: one checkpoint, written and read by parameter servers."""

import contextlib
import dataclasses
import os
import posixpath
import shutil
import tempfile
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_checkpoints as compat
from tfps_plugin.recovery.checkpoints import checkpoint_entries
from tfps_plugin.recovery.checkpoints import committing
from tfps_plugin.recovery.checkpoints import mismatch
from tfps_plugin.recovery.checkpoints import parts as parts_module
from tfps_plugin.recovery.checkpoints import shared_folder
from tfps_plugin.recovery.checkpoints import untracked_state
from tfps_plugin.recovery.checkpoints.checkpoint_entries import Entries
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.checkpoints.snapshot import Snapshot
from tfps_plugin.recovery.incremental import increments
from tfps_plugin.recovery.incremental import merging
from tfps_plugin.recovery.incremental.row_marks import Marks
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.saving import apart

_CHIEF = "/device:CPU:0"
# What TensorFlow numbers checkpoints with; not all of them have it.
_COUNTER = "save_counter"
# Where the graph of objects has what Keras does not track; see
# `Checkpoint._untracked`.
_UNTRACKED = "tfps/"


@dataclasses.dataclass(frozen=True, eq=False)
class Written:
    """A checkpoint that an increment may follow.

    Attributes:
        prefixes: Of the checkpoints that restore it, the full one first; the
            last is itself.
        marks: Those of its tables.
    """

    prefixes: list[str]
    marks: Marks


class PendingWrite:
    """A checkpoint whose values are taken, but not yet written.

    Threading: `write` once, on any thread.

    Attributes:
        prefix: Where it will be.
        parts: What parameter servers hold of it.
    """

    def __init__(
        self, prefix: str, parts: list[Part], write: Callable[[], Written]
    ) -> None:
        self.prefix = prefix
        self.parts = parts
        self._write = write

    def write(self) -> Written:
        """Writes it; it exists when this returns.

        Returns:
            What an increment may follow.

        Raises:
            tf.errors.OpError: If it cannot be written, for instance because
                the disk is full. There is no checkpoint then, and none was
                changed.
        """
        return self._write()


class Checkpoint(tf.train.Checkpoint):
    """Saves and restores programs whose variables are on parameter servers.

    ```python
    checkpoint = tfps.Checkpoint(model=model)
    path = checkpoint.write("/checkpoints/first")
    ...
    checkpoint.restore(path)
    ```

    It is a `tf.train.Checkpoint` and writes what TensorFlow reads: each table
    is one tensor to whoever asks for it. In addition:

    - every parameter server writes and reads its own rows, all at the same
      time, without the chief, if they see the chief's files; if not, rows
      pass through the chief in slices of 64 MB;
    - a checkpoint exists whole or not at all, whenever a process dies;
    - the states of a Keras model's metrics and of its random generators are
      part of it;
    - it is restored into any number of shards and parameter servers, and into
      or from a program of one process;
    - what does not fit is an error that lists it, before anything is changed.

    Source: the format is that of TensorFlow's `BundleWriter`, with slices.

    Threading: one call at a time, from the thread that runs `fit`; training
    steps that are in flight are finished first.
    """

    # Writing; `__init__`, `write` and `save` are those of TensorFlow.

    def _write(self, file_prefix: Any, options: Any = None) -> str:
        """What `write`, `save` and managers of TensorFlow come down to.

        Raises:
            tf.errors.OpError: If it cannot be written. A checkpoint of that
                name that was there before is untouched.
            BaseException: What a training step in flight has raised.
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
        """Takes the values of a checkpoint; training may go on after that.

        Until they are written, a parameter server holds its variables twice;
        of an increment only the rows that have changed.

        Args:
            file_prefix: As for `write`.
            follows: The checkpoint before, for an increment; None: it is to
                be a full one.
            marks_rows: Whether an increment may follow this one.

        Returns:
            What is to be written.
        """
        prefix = os.fspath(file_prefix)
        steps_in_flight.finish()
        folder = posixpath.dirname(prefix) or "."
        tf.io.gfile.makedirs(folder)
        written = committing.begin(prefix)
        try:
            with self._untracked():
                own = self._write_own(f"{written}-own")
            parts = self._parts(compat.object_graph_of(own))
            by_ps = shared_folder.is_seen_by(
                folder, sorted(parts_module.by_device(parts))
            )
            if follows is None:
                # Whoever reads it, such as an evaluator, may have no optimizer
                # to catch up with. An increment has but the rows that changed.
                for part in parts:
                    part.variable.finish_steps()
            snapshot = Snapshot(parts, follows.marks if follows else {})
        except BaseException:
            committing.discard(written)
            raise
        needs = follows.prefixes if follows is not None else []

        def write() -> Written:
            try:
                files = [own, *snapshot.write(f"{written}-ps", by_ps=by_ps)]
                if needs:
                    files.append(
                        increments.write_description(f"{written}-needs", needs)
                    )
                marks = snapshot.marks() if marks_rows else {}
                committing.commit(written, files, prefix)
                return Written([*needs, prefix], marks)
            except BaseException:
                committing.discard(written)
                raise

        return PendingWrite(prefix, parts, write)

    def _write_own(self, prefix: str) -> str:
        """Writes all that no ps holds, and the graph of all objects."""
        options = tf.train.CheckpointOptions(experimental_io_device=_CHIEF)
        with apart.apart():
            return str(super()._write(prefix, options))

    @contextlib.contextmanager
    def _untracked(self) -> Iterator[None]:
        """Has metrics and seeds be part of the graph of objects."""
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
        """Gives everything the values that a checkpoint has for it.

        Args:
            save_path: The prefix, from `write` or `tf.train
                .latest_checkpoint`; None does nothing, as in TensorFlow.
            options: `tf.train.CheckpointOptions`.
            strict: Whether everything has to be in the checkpoint, and
                everything of the checkpoint in the program. If not, what is
                missing keeps its value; shapes and dtypes have to agree
                anyway. What is created later, such as an optimizer's slots,
                gets its value then.

        Returns:
            TensorFlow's status object.

        Raises:
            CheckpointMismatchError: If the two do not fit; nothing is changed
                then.
            tf.errors.OpError: If a file cannot be read.
        """
        if save_path is None:
            return super().restore(save_path, options)
        prefix = os.fspath(save_path)
        steps_in_flight.finish()
        prefixes = increments.chain_of(prefix)
        readers = [compat.open_reader(each) for each in prefixes]
        graph = compat.read_object_graph(readers[-1])
        if any(c.local_name == _COUNTER for c in graph.nodes[0].children):
            _ = self.save_counter  # TensorFlow makes it when it is asked for
        with self._untracked():
            entries = checkpoint_entries.find(self, graph)
            _require_match(entries, readers, strict=strict, prefix=prefix)
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
        """Restores an increment by way of a full checkpoint."""
        with contextlib.ExitStack() as stack:
            folder = tempfile.mkdtemp(prefix="tfps-merged-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            merged = os.path.join(folder, "merged")
            merging.merge(prefixes, merged)
            status = self.restore(merged, options, strict=strict)
            if not strict:
                # What is created later is still restored from it.
                deferred = compat.deferred_restorations(status)
                weakref.finalize(deferred, stack.pop_all().close)
        return status

    def read(self, save_path: Any, options: Any = None) -> Any:
        """As `restore`, but what is missing keeps its value."""
        return self.restore(save_path, options, strict=False)

    def parts_in(self, prefix: str) -> list[Part]:
        """What parameter servers hold, and that a checkpoint has.

        Args:
            prefix: Of the checkpoint.
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
    """Whether TensorFlow is to restore a table that an increment has in part.

    That is, one of a program of one process, or one that is not there yet.
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


def _require_match(
    entries: Entries, readers: Sequence[Any], *, prefix: str, strict: bool
) -> None:
    shapes: dict[str, Any] = {}
    dtypes: dict[str, Any] = {}
    for reader in readers:
        shapes |= reader.get_variable_to_shape_map()
        dtypes |= reader.get_variable_to_dtype_map()
    different = []
    for entry in entries.found:
        if entry.living is None or not checkpoint_entries.is_variable(
            entry.living
        ):
            continue
        value = checkpoint_entries.value_of(entry.living)
        ours = mismatch.kind(tf.as_dtype(value.dtype).name, tuple(value.shape))
        theirs = mismatch.kind(dtypes[entry.key].name, tuple(shapes[entry.key]))
        if ours != theirs:
            different.append((entry.path, ours, theirs))
    differences = mismatch.describe(
        [path for path, _ in entries.missing if _counts(path)]
        if strict
        else [],
        [
            entry.path
            for entry in entries.found
            if entry.living is None and _counts(entry.path)
        ]
        if strict
        else [],
        different,
    )
    if differences:
        raise errors.CheckpointMismatchError(
            "The checkpoint does not fit the program, and nothing was "
            f"restored. Received: checkpoint={prefix!r}.\n{differences}\n"
            "What to do: make the same objects as the program that wrote it, "
            "and build them first (model.build(...), "
            "optimizer.build(model.trainable_variables)); or, if only names "
            "differ or are missing, restore(..., strict=False) restores what "
            "fits."
        )


def _counts(path: str) -> bool:
    """Whether a difference there is one.

    Keras makes the states of metrics with the first batch, and TensorFlow its
    counter with the first `save`.
    """
    return path != _COUNTER and not path.startswith(_UNTRACKED)
