"""What a table looks like in TensorFlow's checkpoints and SavedModels.

In both it is one variable. A checkpoint has it in slices, one for each shard,
which the ps write and read themselves; TensorFlow puts slices together, and
cuts them, for whoever asks for others. A SavedModel has a checkpoint and
functions, which are traced again when it is made: the table then shows itself
as a plain variable of this process, which never gets a value
(`SavedForm.stand_in`).
"""

import weakref
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_saving as compat
from tfps_plugin.variables.row_lookup import Table

compat.restore_slices()

_VALUE = compat.VARIABLE_VALUE_KEY


class SavedForm(Table):
    """The part of a sharded variable that TensorFlow's savers talk to."""

    _stand_in: tf.Variable | None = None

    # What the subclass has.

    @property
    def name(self) -> str:
        """The name it was created with."""
        raise NotImplementedError  # every subclass has its own

    @property
    def trainable(self) -> bool:
        """Whether gradient tapes watch it by themselves."""
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

    def slice_specs(self) -> list[str]:
        """How a checkpoint names the rows of each shard."""
        shape = self.shape.as_list()
        return [
            tf.Variable.SaveSliceInfo(
                self.name,
                shape,
                [offset, *[0] * (len(shape) - 1)],
                shard.shape.as_list(),
            ).spec
            for offset, shard in zip(
                self.layout.offsets, self.shards, strict=False
            )
        ]

    def _serialize_to_tensors(self) -> dict[str, Any]:
        """The shards, each as a slice that its own ps writes."""
        return {
            _VALUE: {
                spec: _deferred(shard)
                for spec, shard in zip(
                    self.slice_specs(), self.shards, strict=True
                )
            }
        }

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        """Assigns the slices, each on the ps that has read it."""
        slices = restored_tensors[_VALUE]
        return [
            shard._restore_from_tensors({_VALUE: slices[spec]})
            for spec, shard in zip(self.slice_specs(), self.shards, strict=True)
        ]

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        """Copies the shards, on their ps, for a checkpoint that is written
        while training goes on."""
        for shard in self.shards:
            shard._copy_trackable_to_cpu(object_map)
        if self not in object_map:
            object_map[self] = _Copy(
                self, [object_map[shard] for shard in self.shards]
            )

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
            # Whoever finds it in a function finds the table by it.
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
    """Copies of the shards of a table, to be written in its place."""

    def __init__(self, table: SavedForm, copies: list[tf.Variable]) -> None:
        super().__init__()
        self._specs = table.slice_specs()
        self._copies = copies

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {
            _VALUE: {
                spec: _deferred(copy)
                for spec, copy in zip(self._specs, self._copies, strict=True)
            }
        }

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        return None  # a copy is written only


def _deferred(variable: Any) -> Any:
    def read() -> tf.Tensor:
        with tf.device(variable.device):
            # Not copied: a ps has no room for its shards twice.
            return variable.read_value_no_copy()

    return compat.deferred_read(read, variable.dtype, variable.device)
