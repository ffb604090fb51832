"""Form of a table in TensorFlow's checkpoints and SavedModels.

In both it is one variable. A checkpoint has it in slices, one or more for each
shard, which the ps write and read themselves; TensorFlow joins and cuts slices
if a reader needs others. A SavedModel has a checkpoint and functions, which are
traced again when it is made: the table then appears as a plain variable of this
process, which never gets a value (`SavedForm.stand_in`).
"""

import functools
import math
import weakref
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_saving as compat
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.saving import apart

_VALUE = compat.VARIABLE_VALUE_KEY

# Approximate size of a slice in a checkpoint.
SLICE_BYTES = 64 << 20
# Slices that begin at a multiple of this number of rows are aligned in memory
# as TensorFlow requires, for any dtype.
_ALIGNED_ROWS = 64


class SavedForm(Table):
    """The part of a sharded variable that TensorFlow's savers use."""

    _stand_in: tf.Variable | None = None

    # Attributes of the subclass.

    @property
    def name(self) -> str:
        """The name it was created with."""
        raise NotImplementedError  # every subclass has its own

    @property
    def trainable(self) -> bool:
        """True if gradient tapes watch it automatically."""
        raise NotImplementedError  # every subclass has its own

    @property
    def synchronization(self) -> tf.VariableSynchronization:
        """As in `tf.Variable`."""
        raise NotImplementedError  # every subclass has its own

    @property
    def aggregation(self) -> tf.VariableAggregation:
        """As in `tf.Variable`."""
        raise NotImplementedError  # every subclass has its own

    # Checkpoints.

    def _serialize_to_tensors(self) -> dict[str, Any]:
        """Returns the table in slices, which the ps that hold them write.

        There are more slices than shards: a reader that needs other slices has
        to read every stored slice that overlaps with them.
        """
        if apart.is_apart():
            return {_VALUE: {}}
        self._finish_steps()
        return {_VALUE: slices(self, self.shards, SLICE_BYTES)}

    def slices_to_restore(self) -> dict[str, Any]:
        """Returns the shards, each as a slice that its own ps reads."""
        if apart.is_apart():
            return {}
        return slices(self, self.shards, None)

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> None:
        """Assigns the shards, each on the ps that has read it.

        Args:
            restored_tensors: The slices of `slices_to_restore`, or a dictionary
                of them by the name of the value.
        """
        if apart.is_apart():
            return
        by_name = restored_tensors.get(_VALUE, restored_tensors)
        for spec, shard in zip(
            self.slices_to_restore(), self.shards, strict=True
        ):
            shard._restore_from_tensors({_VALUE: by_name[spec]})

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        """Copies the shards on their ps, for an asynchronous checkpoint."""
        self._finish_steps()
        for shard in self.shards:
            shard._copy_trackable_to_cpu(object_map)
        if self not in object_map:
            object_map[self] = _Copy(
                self, [object_map[shard] for shard in self.shards]
            )

    def _finish_steps(self) -> None:
        for shard in self.shards:
            shard.finish_steps()

    # SavedModels.

    @property
    def stand_in(self) -> tf.Variable:
        """The plain variable that functions of a SavedModel use."""
        if self._stand_in is None:
            self._stand_in = compat.uninitialized_variable(
                self.shape,
                self.dtype,
                self.name,
                trainable=self.trainable,
                synchronization=self.synchronization,
                aggregation=self.aggregation,
            )
            # It leads from this variable in a function to the table.
            self._stand_in._distributed_container = weakref.ref(self)
        return self._stand_in

    def _export_to_saved_model_graph(
        self, object_map: Any, tensor_map: Any, options: Any, **kwargs: Any
    ) -> list[tf.Tensor]:
        """Puts one plain variable into the graph of the SavedModel."""
        handle = self.stand_in.handle
        if self not in object_map:
            object_map[self] = compat.copy_into_graph(self.stand_in)
            tensor_map[handle] = object_map[self].handle
        return [handle]

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        """Describes one plain variable."""
        compat.describe_variable(self.stand_in, proto, options)


class _Copy(tf.__internal__.tracking.Trackable):
    """Copies of the shards of a table, which are written in its place."""

    def __init__(self, table: SavedForm, copies: list[tf.Variable]) -> None:
        super().__init__()
        self._table = table
        self._copies = copies

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {_VALUE: slices(self._table, self._copies, SLICE_BYTES)}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        return None  # a copy is only written


def slices(
    table: Any, shards: Sequence[Any], max_bytes: int | None
) -> dict[str, Any]:
    """Returns slices of a table, to be read where they are.

    Args:
        table: The whole table, a `RemoteVariable` or a `ShardedVariable`.
        shards: Variables or copies that have its rows.
        max_bytes: Size of a slice; None for one slice for each shard.

    Returns:
        The deferred read of each slice, by the slice's name in checkpoints.
    """
    found = {}
    for offset, shard in zip(table.layout.offsets, shards, strict=False):
        for rows in pieces(shard, max_bytes):
            shape = [len(rows), *shard.shape.as_list()[1:]]
            name = tf.Variable.SaveSliceInfo(
                table.name,
                table.shape.as_list(),
                [offset + rows.start, *[0] * (len(shape) - 1)],
                shape,
            ).spec
            found[name] = compat.deferred_read(
                functools.partial(_read, shard, rows), shard.dtype, shard.device
            )
    return found


def pieces(variable: Any, max_bytes: int | None) -> Iterator[range]:
    """Cuts the rows of a variable.

    Args:
        variable: A variable with at least one axis.
        max_bytes: Size of a piece; None for all rows in one.

    Yields:
        Ranges of rows. TensorFlow can slice each piece without a copy.
    """
    num_rows, *row_shape = variable.shape.as_list()
    step = max(1, num_rows)
    if max_bytes is not None:
        row_bytes = max(1, math.prod(row_shape) * variable.dtype.size)
        step = max(1, max_bytes // row_bytes // _ALIGNED_ROWS) * _ALIGNED_ROWS
    for start in range(0, num_rows, step):
        yield range(start, min(start + step, num_rows))


def _read(variable: Any, rows: range) -> tf.Tensor:
    with tf.device(variable.device):
        if getattr(variable, "on_disk", None) is not None:
            return tf.raw_ops.ResourceGather(
                resource=variable.handle,
                indices=tf.range(rows.start, rows.stop),
                dtype=variable.dtype,
            )
        # Neither this nor the slice is a copy: a ps may not have the memory.
        whole = variable.read_value_no_copy()
        return whole[rows.start : rows.stop]


def restore_in_place(variable: Any, value: tf.Tensor) -> tf.Operation | None:
    """Assigns a large variable in its own memory, piece by piece.

    If rows of the variable have been looked up, assigning all at once would
    allocate its memory again.

    Args:
        variable: A variable on a ps.
        value: A value of its dtype and shape, on the same ps.

    Returns:
        The operation that completes the assignment. None if nothing was
        assigned, because the variable is small, has no value yet or another
        shape.
    """
    shape = variable.shape
    if shape.rank == 0 or not shape.is_compatible_with(value.shape):
        return None
    rows_of_pieces = list(pieces(variable, SLICE_BYTES))
    with tf.init_scope(), tf.device(variable.device):
        if len(rows_of_pieces) < 2 or not tf.raw_ops.VarIsInitializedOp(
            resource=variable.own_handle
        ):
            return None
    with tf.device(variable.device):
        # A function does not know the shape that it will read.
        value = tf.ensure_shape(value, shape)
        # In order: each piece is an update of the same variable.
        for rows in rows_of_pieces:
            done = tf.raw_ops.ResourceScatterUpdate(
                resource=variable.handle,
                indices=tf.range(rows.start, rows.stop),
                updates=value[rows.start : rows.stop],
            )
    return tf.no_op() if done is None else done
