"""A table cut over several parameter servers, one value to the user."""

import math
import weakref
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.variables import row_gather
from tfps_plugin.variables import views
from tfps_plugin.variables.layout import RowLayout
from tfps_plugin.variables.remote_variable import RemoteVariable
from tfps_plugin.variables.tensor_protocol import TensorProtocol
from tfps_plugin.variables.worker_local import WorkerLocalHandle

# Whole tables pass through the chief in blocks of about this size.
_BLOCK_BYTES = 16 << 20


class ShardedVariable(TensorProtocol):
    """A variable whose rows are spread over parameter servers.

    It behaves as a `tf.Variable` does and works as the value of a
    `keras.Variable`: arithmetic, slicing, conversion, assignment. Looking up
    rows (`tf.gather`, `keras.layers.Embedding`) asks each ps for the distinct
    rows it holds and gives one gradient, a `tf.IndexedSlices` of the whole
    table without repeated ids. Anything else reads the whole table.

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
        """Joins shards to one variable.

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
        self._dtype = first.dtype
        self._shape = tf.TensorShape([layout.num_rows]).concatenate(
            first.shape[1:]
        )
        self._trainable = trainable
        self._synchronization = synchronization
        self._aggregation = aggregation
        self._unique_id = f"{name}_{compat.unique_number()}"
        # Holds nothing. It is what a gradient tape watches in the place of
        # all shards, so that there is one gradient.
        self._anchor = WorkerLocalHandle(
            self._shape, self._dtype, f"{name}_anchor", trainable=trainable
        )
        self._family: list[weakref.ref[ShardedVariable]] = []
        for shard in self._variables:
            # Keras's optimizers find the slots of a shard through this.
            shard._distributed_container = lambda: self

    def join_family(self, slot: "ShardedVariable") -> None:
        """Declares that `slot` is updated shard by shard with this variable.

        Args:
            slot: A sharded variable of the same layout on the same ps.
        """
        for shard, shard_of_slot in zip(
            self._variables, slot.variables, strict=True
        ):
            shard.join_family(shard_of_slot)
        self._family.append(weakref.ref(slot))

    @property
    def family(self) -> list["ShardedVariable"]:
        """The slots that are updated with this variable and still exist."""
        return [slot for ref in self._family if (slot := ref()) is not None]

    # What it is.

    @property
    def variables(self) -> list[RemoteVariable]:
        """The shards, in the order of their rows."""
        return list(self._variables)

    @property
    def layout(self) -> RowLayout:
        """Which rows are in which shard."""
        return self._layout

    @property
    def handle(self) -> tf.Tensor:
        """The handle that gradient tapes know the whole variable by."""
        return self._anchor.handle

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of the whole table."""
        view = views.view_of(self._unique_id)
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
        """Whether gradient tapes watch it by themselves."""
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

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Looks up rows; `tf.gather` calls this.

        Repeated ids are asked for once. The gradient is a `tf.IndexedSlices`
        over the whole table in which every id occurs once.

        Args:
            indices: Row numbers, an integer tensor of any shape.
            name: Ignored; part of TensorFlow's protocol.

        Returns:
            The rows, of shape `indices.shape + shape[1:]`.
        """
        ids = tf.convert_to_tensor(indices)
        compat.variable_accessed(self._anchor)

        @tf.custom_gradient
        def look_up(anchor: tf.Tensor, ids_N: tf.Tensor) -> Any:
            ids_U, positions_N = tf.unique(ids_N)
            rows_UD = row_gather.gather_rows(
                self._layout,
                [shard.handle for shard in self._variables],
                [shard.device for shard in self._variables],
                self._dtype,
                ids_U,
            )

            def gradient(upstream_ND: Any) -> Any:
                sums_UD = tf.math.unsorted_segment_sum(
                    upstream_ND, positions_N, tf.size(ids_U)
                )
                # A gradient may be built in a graph of its own, which takes
                # only what it has made or passed through an operation.
                return (
                    tf.IndexedSlices(
                        sums_UD,
                        tf.identity(ids_U),
                        tf.constant(self._shape.as_list(), tf.int64),
                    ),
                    None,
                )

            return tf.gather(rows_UD, positions_N), gradient

        rows_ND = look_up(self._anchor.handle, tf.reshape(ids, [-1]))
        return row_gather.shaped_like_ids(rows_ND, ids, self._shape[1:])

    def read_value(self) -> tf.Tensor:
        """The whole table as one dense tensor."""
        view = views.view_of(self._unique_id)
        if view is not None:
            with views.unveiled():
                return view.read()
        compat.variable_accessed(self._anchor)

        @tf.custom_gradient
        def read(anchor: tf.Tensor) -> Any:
            parts = []
            for shard in self._variables:
                with tf.device(shard.device):
                    part = compat.read_resource(shard.handle, self._dtype)
                parts.append(part)
            return tf.concat(parts, 0), lambda upstream: upstream

        value = read(self._anchor.handle)
        value.set_shape(self._shape)
        return value

    def __getitem__(self, key: Any) -> tf.Tensor:
        """Slices; a range of rows is read from the ps that hold it."""
        first, rest = (
            (key[0], key[1:])
            if isinstance(key, tuple) and key
            else (
                key,
                (),
            )
        )
        rows = _static_rows(first, self._layout.num_rows)
        if rows is None or views.view_of(self._unique_id) is not None:
            return self.read_value()[key]
        return self._read_rows(rows.start, rows.stop)[(slice(None), *rest)]

    def _read_rows(self, start: int, stop: int) -> tf.Tensor:
        compat.variable_accessed(self._anchor)

        @tf.custom_gradient
        def read(anchor: tf.Tensor) -> Any:
            parts = [tf.zeros([0, *self._shape.as_list()[1:]], self._dtype)]
            for shard, rows in self._layout.overlaps(start, stop):
                variable = self._variables[shard]
                with tf.device(variable.device):
                    whole = compat.read_resource(variable.handle, self._dtype)
                    parts.append(whole[rows.start : rows.stop])

            def gradient(upstream: tf.Tensor) -> tf.IndexedSlices:
                ids = tf.range(start, max(start, stop), dtype=tf.int64)
                return tf.IndexedSlices(
                    upstream, ids, tf.constant(self._shape.as_list(), tf.int64)
                )

            return tf.concat(parts[1:] or parts, 0), gradient

        return read(self._anchor.handle)

    def numpy(self) -> np.ndarray:
        """The whole table as an array, fetched block by block."""
        array = np.empty(self._shape.as_list(), self._dtype.as_numpy_dtype)
        for start, stop in self._blocks():
            array[start:stop] = self._fetch_rows(start, stop)
        return array

    def _fetch_rows(self, start: int, stop: int) -> np.ndarray:
        parts = [
            self._variables[shard].fetch_rows(rows)
            for shard, rows in self._layout.overlaps(start, stop)
        ]
        return np.concatenate(parts)

    def _blocks(self) -> Iterable[tuple[int, int]]:
        row_bytes = math.prod(self._shape.as_list()[1:]) * self._dtype.size
        block = max(1, _BLOCK_BYTES // max(1, row_bytes))
        for start in range(0, self._layout.num_rows, block):
            yield start, min(start + block, self._layout.num_rows)

    # Assigning.

    def assign(
        self,
        value: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> "ShardedVariable":
        """As `tf.Variable.assign`; returns this variable."""
        return self._assign("assign", value)

    def assign_add(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> "ShardedVariable":
        """As `tf.Variable.assign_add`; returns this variable."""
        return self._assign("assign_add", delta)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> "ShardedVariable":
        """As `tf.Variable.assign_sub`; returns this variable."""
        return self._assign("assign_sub", delta)

    def _assign(self, method: str, value: Any) -> "ShardedVariable":
        view = views.view_of(self._unique_id)
        if view is not None:
            # Converted under the views: another table is seen as rows too.
            value = tf.convert_to_tensor(value, self._dtype)
            with views.unveiled():
                view.assign(method, value)
            return self
        if isinstance(value, ShardedVariable) and value.layout == self._layout:
            # The same rows on both sides: nothing passes through the caller.
            for shard, other in zip(
                self._variables, value.variables, strict=True
            ):
                with tf.device(shard.device):
                    getattr(shard, method)(other.read_value())
            return self
        if isinstance(value, np.ndarray) and tf.executing_eagerly():
            self._require_shape(value.shape)
            return self._assign_in_blocks(method, value)
        value = tf.convert_to_tensor(value, self._dtype)
        self._require_shape(value.shape)
        for index, shard in enumerate(self._variables):
            rows = self._layout.rows(index)
            getattr(shard, method)(value[rows.start : rows.stop])
        return self

    def _assign_in_blocks(
        self, method: str, value: np.ndarray
    ) -> "ShardedVariable":
        scatter = {
            "assign": "scatter_update",
            "assign_add": "scatter_add",
            "assign_sub": "scatter_sub",
        }[method]
        for start, stop in self._blocks():
            for index, rows in self._layout.overlaps(start, stop):
                shard = self._variables[index]
                first = self._layout.offsets[index] + rows.start
                block = tf.constant(
                    value[first : first + len(rows)], self._dtype
                )
                ids = tf.range(rows.start, rows.stop)
                getattr(shard, scatter)(tf.IndexedSlices(block, ids))
        return self

    def _require_shape(self, shape: Any) -> None:
        if not self._shape.is_compatible_with(tf.TensorShape(shape)):
            raise ValueError(
                f"The sharded variable {self._name!r} can only be assigned "
                f"values of its own shape {tuple(self._shape)}. Received: "
                f"shape={tuple(shape)}"
            )

    def scatter_update(self, rows: tf.IndexedSlices) -> "ShardedVariable":
        """Assigns single rows, as `tf.Variable.scatter_update`."""
        return self._scatter("scatter_update", rows)

    def scatter_add(self, rows: tf.IndexedSlices) -> "ShardedVariable":
        """Adds to single rows, as `tf.Variable.scatter_add`."""
        return self._scatter("scatter_add", rows)

    def scatter_sub(self, rows: tf.IndexedSlices) -> "ShardedVariable":
        """Subtracts from single rows, as `tf.Variable.scatter_sub`."""
        return self._scatter("scatter_sub", rows)

    def _scatter(
        self, method: str, rows: tf.IndexedSlices
    ) -> "ShardedVariable":
        if views.view_of(self._unique_id) is not None:
            raise errors.UnsupportedError(
                f"{method} on {self._name!r} inside an optimizer's update: "
                "the update already sees single rows only. Use assign_add or "
                "assign_sub with a value of the gradient's shape."
            )
        values = tf.convert_to_tensor(rows.values, self._dtype)
        local_ids, (parts,) = row_gather.split_by_shard(
            self._layout, tf.convert_to_tensor(rows.indices), values
        )
        for shard, ids, part in zip(
            self._variables, local_ids, parts, strict=True
        ):
            getattr(shard, method)(tf.IndexedSlices(part, ids))
        return self


def _static_rows(key: Any, num_rows: int) -> range | None:
    """The contiguous rows that a Python slice asks for, if it does."""
    if not isinstance(key, slice):
        return None
    bounds = (key.start, key.stop, key.step)
    if not all(b is None or isinstance(b, int) for b in bounds):
        return None
    rows = range(*key.indices(num_rows))
    return rows if rows.step == 1 else None
