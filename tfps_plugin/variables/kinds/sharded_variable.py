"""A table sharded over several parameter servers, one value to the user."""

import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.chief.chief_reads import on_the_chief
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.tape_anchor import TapeAnchor
from tfps_plugin.variables.lookup import dense_reads
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.methods import table_slices
from tfps_plugin.variables.methods.argument_type import SameVariable
from tfps_plugin.variables.methods.assign_methods import AssignMethods
from tfps_plugin.variables.methods.scatter_methods import ScatterMethods
from tfps_plugin.variables.methods.tensor_protocol import TensorProtocol
from tfps_plugin.variables.saving import shard_reader
from tfps_plugin.variables.saving import shard_writer
from tfps_plugin.variables.saving.saved_form import SavedForm
from tfps_plugin.variables.sharding.layout import RowLayout
from tfps_plugin.variables.step_trace import StepTrace


class ShardedVariable(AssignMethods, ScatterMethods, SavedForm, TensorProtocol):
    """A variable whose rows are spread over parameter servers.

    It behaves like a `tf.Variable` and works as the value of a
    `keras.Variable`: arithmetic, slicing, conversion, assignment. Looking up
    rows (`tf.gather`, `keras.layers.Embedding`) asks each ps for the distinct
    rows it holds and gives one gradient, the `DistinctRows` of the whole
    table. Anything else reads the whole table.

    Created under the scope of a strategy with a `variable_partitioner`, never
    by hand. `.variables` lists the shards in the order of their rows, each
    with its `.device`.

    Threading: as `tf.Variable`; every shard is read and assigned on its own,
    so a reader may see one shard before and another after an assignment.
    """

    def __init__(
        self,
        variables: Sequence[RemoteVariable],
        layout: RowLayout,
        name: str,
        *,
        trainable: bool = True,
        synchronization: tf.VariableSynchronization = (
            tf.VariableSynchronization.AUTO
        ),
        aggregation: tf.VariableAggregation = tf.VariableAggregation.NONE,
    ) -> None:
        """Joins shards into one variable.

        Args:
            variables: The shards, in the order of their rows.
            layout: Rows of each shard.
            name: Name shown to the user.
            trainable: Whether gradient tapes watch it by themselves.
            synchronization: As in `tf.Variable`.
            aggregation: As in `tf.Variable`.
        """
        first = variables[0]
        self._variables = list(variables)
        self._layout = layout
        self._name = name
        self.path = name
        self._dtype = first.dtype
        self._shape = tf.TensorShape([layout.num_rows]).concatenate(
            first.shape[1:]
        )
        self._trainable = trainable
        self._synchronization = synchronization
        self._aggregation = aggregation
        self._unique_id = f"{name}_{compat.unique_number()}"
        self._anchor = TapeAnchor(
            self._shape,
            self._dtype,
            f"{name}_anchor",
            self,
            trainable=trainable,
        )
        self._family: list[weakref.ref[ShardedVariable]] = []
        self._after_cut: Callable[[], None] | None = None
        self._own_shards()

    def __tf_tracing_type__(self, context: Any) -> SameVariable:
        """Returns the type by which functions that take it are traced."""
        del context
        return SameVariable(self)

    def _own_shards(self) -> None:
        for shard in self._variables:
            # Keras's optimizers find the slots of a shard through this.
            shard._distributed_container = lambda: self

    def recut(
        self, variables: Sequence[RemoteVariable], layout: RowLayout
    ) -> None:
        """Goes on with other shards, which have the same rows.

        Functions that were traced before cannot be called any more. Call
        `recut_is_complete` when the slots are cut likewise.

        Args:
            variables: The shards, in the order of their rows.
            layout: Rows of each shard.
        """
        self._variables = list(variables)
        self._layout = layout
        self._own_shards()

    def recut_is_complete(self) -> None:
        """Joins the new shards with those of the slots."""
        for slot in self.family:
            self._join_shards(slot)
        if self._after_cut is not None:
            self._after_cut()

    def after_recut(self, call: Callable[[], None] | None) -> None:
        """Has a function called whenever the table has been cut anew.

        Args:
            call: Called after the slots were cut likewise, in place of the one
                before; None: nothing is.
        """
        self._after_cut = call

    def join_family(self, slot: "ShardedVariable") -> None:
        """Declares that `slot` is updated shard by shard with this variable.

        Args:
            slot: A sharded variable of the same layout on the same ps.
        """
        self._join_shards(slot)
        self._family.append(weakref.ref(slot))

    def _join_shards(self, slot: "ShardedVariable") -> None:
        for shard, shard_of_slot in zip(
            self._variables, slot.variables, strict=True
        ):
            shard.join_family(shard_of_slot)

    @property
    def family(self) -> list["ShardedVariable"]:
        """The slots that are updated with this variable and still exist."""
        return [slot for ref in self._family if (slot := ref()) is not None]

    # Attributes.

    @property
    def variables(self) -> list[RemoteVariable]:
        """The shards, in the order of their rows.

        In functions of a SavedModel, the one variable that it has.
        """
        if tensorflow_saving.is_saving_model():
            return [self.stand_in]
        return list(self._variables)

    @property
    def layout(self) -> RowLayout:
        """The rows of each shard."""
        return self._layout

    @property
    def shards(self) -> list[RemoteVariable]:
        """The shards, in the order of their rows."""
        return self._variables

    @property
    def tape_input(self) -> tf.Tensor:
        """A tensor of the worker, whose gradient is that of all shards."""
        return self._anchor.token

    @property
    def handle(self) -> tf.Tensor:
        """The handle by which gradient tapes know the whole variable."""
        if tensorflow_saving.is_saving_model():
            return self.stand_in.handle
        return self._anchor.handle

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of the whole table."""
        view = StepTrace.current().view_of(self._unique_id)
        return self._shape if view is None else view.shape

    def get_shape(self) -> tf.TensorShape:
        """Shape of the whole table."""
        return self.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._shape.rank

    @property
    def dtype(self) -> tf.DType:
        """Dtype of the elements."""
        return self._dtype

    @property
    def name(self) -> str:
        """The name it was created with."""
        return self._name

    @property
    def device(self) -> str:
        """Device of the first shard; each shard has its own `.device`."""
        return self._variables[0].device

    @property
    def trainable(self) -> bool:
        """True if gradient tapes watch it automatically."""
        return self._trainable

    @property
    def synchronization(self) -> tf.VariableSynchronization:
        """As in `tf.Variable`."""
        return self._synchronization

    @property
    def aggregation(self) -> tf.VariableAggregation:
        """As in `tf.Variable`."""
        return self._aggregation

    @property
    def _shared_name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return (
            f"<tfps.ShardedVariable {self._name!r} shape="
            f"{tuple(self._shape)} dtype={self._dtype.name}, "
            f"{self._layout.num_shards} shards>"
        )

    def __iter__(self) -> Iterable[tf.Tensor]:
        return iter(self.read_value())

    def __len__(self) -> int:
        return self._layout.num_rows

    # Reading.

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        """Returns whether all shards have a value, as a boolean scalar.

        Args:
            name: Name of the operation.
        """
        return tf.reduce_all(
            [shard.is_initialized() for shard in self._variables], name=name
        )

    def read_value(self) -> tf.Tensor:
        """Returns the whole table as one dense tensor."""
        view = StepTrace.current().view_of(self._unique_id)
        if view is not None:
            return view.read()
        if tensorflow_saving.is_saving_model():
            return self.stand_in.read_value()
        dense_reads.warn_of(self)
        _finish_steps()
        return shard_reader.read_whole(self)

    def __getitem__(self, key: Any) -> tf.Tensor:
        """Slices the table; rows are read from the ps that hold them.

        As with a `tf.Variable`, the slice has a method `assign`.
        """
        if tensorflow_saving.is_saving_model():
            return self.stand_in[key]
        if StepTrace.current().view_of(self._unique_id) is not None:
            return self.read_value()[key]
        _finish_steps()
        part = table_slices.read(self, key)
        if part is None:
            part = self.read_value()[key]
        part.assign = table_slices.assigner(self, key, part)
        return part

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Looks up rows; see `row_lookup.look_up`."""
        if tensorflow_saving.is_saving_model():
            return self.stand_in.sparse_read(indices, name)
        if StepTrace.current().view_of(self._unique_id) is not None:
            return tf.gather(self.read_value(), indices)
        return row_lookup.look_up(self, indices)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Looks up elements or slices, as `tf.Variable.gather_nd`."""
        if tensorflow_saving.is_saving_model():
            return self.stand_in.gather_nd(indices, name)
        indices = tf.convert_to_tensor(indices)
        rows = self.sparse_read(indices[..., 0])
        if indices.shape[-1] == 1:
            return rows
        return tf.gather_nd(
            rows, indices[..., 1:], indices.shape.rank - 1, name
        )

    def numpy(self) -> np.ndarray:
        """Returns the whole table as an array, fetched block by block."""
        return shard_reader.to_array(self)

    # Assigning.

    def _assign_by(
        self, method: str, value: Any, name: str | None, read_value: bool
    ) -> Any:
        """Assigns, adds or subtracts a value; returns this variable."""
        view = StepTrace.current().view_of(self._unique_id)
        if view is not None:
            # Convert it under the views: another table shows its rows, too.
            value = tf.convert_to_tensor(value, self._dtype)
            view.assign(method, value)
            return self
        exchange = StepTrace.current().exchange
        if exchange is not None:
            exchange.assign(self, method, value)
            return self if read_value else tf.no_op()
        _finish_steps()
        if tensorflow_saving.is_saving_model():
            getattr(self.stand_in, method)(value)
            return self
        operations = shard_writer.assign(self, method, value, name)
        if read_value:
            return self
        return None if tf.executing_eagerly() else tf.group(operations)

    def _scatter(
        self,
        method: str,
        rows: tf.IndexedSlices,
        use_locking: bool,
        name: str | None,
    ) -> "ShardedVariable":
        _finish_steps()
        if tensorflow_saving.is_saving_model():
            getattr(self.stand_in, method)(rows, use_locking, name)
        else:
            shard_writer.scatter(self, method, rows, name)
        return self

    def _scatter_nd(
        self, method: str, indices: Any, updates: Any, name: str | None
    ) -> "ShardedVariable":
        _finish_steps()
        if tensorflow_saving.is_saving_model():
            getattr(self.stand_in, method)(indices, updates, name)
        else:
            shard_writer.scatter_nd(self, method, indices, updates, name)
        return self


def whole_of(variable: RemoteVariable) -> Any:
    """Returns the sharded variable that a shard is, or was, a part of.

    Args:
        variable: A shard, or a variable that is not sharded.

    Returns:
        The sharded variable; `variable` itself if it is no shard of one.
    """
    table = getattr(variable, "_distributed_container", lambda: None)()
    return table if isinstance(table, ShardedVariable) else variable


def _finish_steps() -> None:
    """Brings the model to its state between two steps, on the chief."""
    if on_the_chief():
        steps_in_flight.finish()
