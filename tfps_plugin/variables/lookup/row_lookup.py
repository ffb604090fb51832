"""Looks up rows of a variable on parameter servers, in one way.

The worker makes the ids distinct and sees that the table has them; each ps
gathers its own rows; the worker repeats them where ids were repeated. What a
tape gives back are `DistinctRows`.

Shape legend: V rows of the table, D the rest of a row's shape, N ids asked
for, U distinct ids among them.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat import tensorflow_saving
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin._compat import tensorflow_vectorizing
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup import present_rows
from tfps_plugin.variables.lookup import repeated_rows
from tfps_plugin.variables.lookup import row_gather
from tfps_plugin.variables.lookup import segment_sums
from tfps_plugin.variables.lookup import shard_order
from tfps_plugin.variables.lookup import vectorized_lookup
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.lookup.distinct_rows import dense_shape
from tfps_plugin.variables.sharding.layout import RowLayout
from tfps_plugin.variables.step_trace import StepTrace

# Puts something in another order.
Arrangement = Callable[[tf.Tensor], tf.Tensor]

_CAST = {
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.uint64: tf.int64,
}


class Table:
    """A variable whose rows can be looked up on parameter servers."""

    shape: tf.TensorShape
    dtype: tf.DType

    # What is read of it travels as, see `variables.wire`; None: as it is.
    wire_dtype: tf.DType | None = None

    # Whether the user was told of steps that read all of it.
    has_warned_of_dense_reads = False

    # What rounding has left off its dense gradients, a `GradientResidual`.
    gradient_residual: Any = None

    # Steps that its rows have still to see, a `present_rows.UnseenSteps`; a
    # table of several shards leaves it to them.
    unseen_steps: Any = None

    # Whether rows of it were looked up by their numbers so far.
    was_looked_up = False

    # What the user knows it by: the path of a keras.Variable, if it is one's.
    path: str

    @property
    def layout(self) -> RowLayout:
        """Which rows are in which shard."""
        raise NotImplementedError  # every subclass has its own

    @property
    def shards(self) -> Sequence[Any]:
        """Variables of consecutive rows, each on one ps, in their order."""
        raise NotImplementedError  # every subclass has its own

    @property
    def is_whole(self) -> bool:
        """Whether the table is a variable of one ps itself."""
        return self.shards[0] is self

    @property
    def tape_input(self) -> tf.Tensor:
        """What every read is a function of: its gradient is the table's."""
        raise NotImplementedError  # every subclass has its own

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Looks up rows; `tf.gather` calls this.

        Repeated ids are asked for once. The gradient are `DistinctRows` of
        the whole table.

        Args:
            indices: Row numbers, an integer tensor of any shape.
            name: Ignored; part of TensorFlow's protocol.

        Returns:
            The rows, of shape `indices.shape + shape[1:]`.
        """
        return look_up(self, indices)


def table_behind(
    params: Any,
) -> tuple[Table, Callable[[tf.Tensor], tf.Tensor]] | None:
    """The table that `params` is, or that a `keras.Variable` holds.

    Args:
        params: Anything that TensorFlow may be asked to look up rows of.

    Returns:
        The table, and what has to be done with its rows: a layer of mixed
        precision sees those of a `keras.Variable` in another dtype. None for
        what is no table of ours; functions of a SavedModel have none, there
        each table is a plain variable.
    """
    if tensorflow_saving.is_saving_model():
        return None
    if isinstance(params, Table):
        return params, _as_they_are
    if not isinstance(params, keras.Variable) or not isinstance(
        params._value, Table
    ):
        return None
    # Also where Keras only looks for the shapes of a model.
    params._value.was_looked_up = True
    if keras_compat.has_stateless_value(params):
        return None
    return params._value, params._maybe_autocast


def _as_they_are(rows: tf.Tensor) -> tf.Tensor:
    return rows


def look_up(
    table: Table,
    indices: Any,
    *,
    from_end: bool = False,
    are_inside: bool = False,
    in_shard_order: bool = False,
    arranged: Arrangement | None = None,
) -> tf.Tensor:
    """Looks up rows.

    Args:
        table: What has the rows.
        indices: Row numbers, an integer tensor of any shape.
        from_end: Whether a negative id counts from the end of the table.
        are_inside: Whether it is known that the table has all of them.
        in_shard_order: Whether those of a shard come before those of the
            next one.
        arranged: From something for each of `indices` to the same in another
            order: that of the rows that are returned. To arrange the rows
            themselves is to copy them once more.

    Returns:
        The rows, of shape `indices.shape + table.shape[1:]`.
    """
    rows_UD, positions = distinct_rows(
        table,
        indices,
        from_end=from_end,
        are_inside=are_inside,
        in_shard_order=in_shard_order,
    )
    if arranged is not None:
        positions = arranged(positions)
    return repeated_rows.repeat(rows_UD, positions)


def distinct_rows(
    table: Table,
    indices: Any,
    *,
    from_end: bool = False,
    are_inside: bool = False,
    in_shard_order: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Looks up each distinct row once.

    Args:
        table: What has the rows.
        indices: Row numbers, an integer tensor of any shape.
        from_end: Whether a negative id counts from the end of the table.
        are_inside: As for `look_up`.
        in_shard_order: As for `look_up`.

    Returns:
        The distinct rows, shape `(U, D)`; and for each of `indices` its place
        among them, int32, of the shape of `indices`. In a function that is
        being vectorized each id has a row of its own: only all elements
        together have distinct ones.
    """
    number = tensorflow_vectorizing.element()
    if number is not None:
        ids = tf.convert_to_tensor(indices)
        rows_ND = vectorized_lookup.rows_of_element(
            table,
            tf.reshape(ids, [-1]),
            number,
            functools.partial(
                look_up, from_end=from_end, are_inside=are_inside
            ),
        )
        return rows_ND, tf.reshape(tf.range(tf.size(ids)), tf.shape(ids))
    ids_U, positions = distinct_ids(
        table,
        indices,
        from_end=from_end,
        are_inside=are_inside,
        in_shard_order=in_shard_order,
    )
    whole: Any = table.shards[0]
    if table.is_whole:
        # TensorFlow's own gradient knows how to look up rows of one variable.
        compat.variable_accessed(whole)
        with tf.device(whole.device):
            rows_UD = present_rows.gather(whole, ids_U)
        rows_UD = wire.received(whole, rows_UD)
        StepTrace.current().add_lookup(table, ids_U, rows_UD)
        return rows_UD, positions
    wire_dtype = wire.dtype_of_reads(table)
    with compat.stop_recording():
        rows_UD = row_gather.gather_rows(
            table.layout,
            table.shards,
            table.dtype,
            ids_U,
            wire_dtype,
            table.shape[-1],
        )
    return recorded(table, ids_U, rows_UD), positions


def distinct_ids(
    table: Table,
    indices: Any,
    *,
    from_end: bool = False,
    are_inside: bool = False,
    in_shard_order: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids that the table has, each once; found on the worker's CPU.

    Args:
        table: What has the rows.
        indices: Row numbers, an integer tensor of any shape.
        from_end: Whether a negative id counts from the end of the table.
        are_inside: As for `look_up`.
        in_shard_order: As for `look_up`.

    Returns:
        The distinct row numbers, shape `(U,)`, in the order of the table's
        shards, which wait for the check that all are inside; and for each of
        `indices` its place among them, int32, of the shape of `indices`.
    """
    table.was_looked_up = True
    ids = tf.convert_to_tensor(indices)
    num_rows = table.layout.num_rows
    with tf.device(graph_checks.CPU):
        ids = tf.cast(ids, _CAST.get(ids.dtype, ids.dtype))
        if num_rows > ids.dtype.max:
            ids = tf.cast(ids, tf.int64)
        ids_N = tf.reshape(ids, [-1])
        if not are_inside:
            ids_N = require_inside(
                ids_N, num_rows, table.path, from_end=from_end
            )
        if num_rows <= tf.int32.max:
            # Half as much to compare and to send.
            ids_N = tf.cast(ids_N, tf.int32)
        if from_end:
            # All are inside, counted from one end or the other.
            ids_N = tf.math.floormod(ids_N, tf.constant(num_rows, ids_N.dtype))
        ids_U, positions_N = tf.unique(ids_N)
        if table.layout.num_shards > 1:
            # tf.unique keeps the order of what it finds first.
            ids_U, positions_N = shard_order.sort(
                table.layout, ids_U, positions_N, is_sorted=in_shard_order
            )
        positions = tf.reshape(positions_N, tf.shape(ids))
    positions.set_shape(ids.shape)
    return ids_U, positions


def require_inside(
    ids_N: tf.Tensor, num_rows: int, path: str, *, from_end: bool = False
) -> tf.Tensor:
    """Ids that are an error unless the table has all of them.

    Args:
        ids_N: Row numbers, shape `(N,)`, of a dtype that can count the rows;
            none is fine.
        num_rows: Rows of the table.
        path: Name of the table, for the message.
        from_end: Whether a negative id counts from the end of the table.

    Returns:
        The ids, which wait for the check: no ps is asked before.
    """
    lowest = -num_rows if from_end else 0
    smallest, largest = tf.reduce_min(ids_N), tf.reduce_max(ids_N)
    return graph_checks.gated(
        ids_N,
        (smallest >= lowest) & (largest <= num_rows - 1),
        [
            f"Ids outside of the table {path} were looked up. It has rows 0 "
            f"to {num_rows - 1}"
            + (f", or -{num_rows} to -1 from its end" if from_end else "")
            + ". Received: smallest id =",
            smallest,
            "largest id =",
            largest,
            "Make the table larger (input_dim of an Embedding layer), or map "
            "unknown ids to a row of their own before the lookup.",
        ],
    )


def recorded(table: Table, ids_U: tf.Tensor, rows_UD: tf.Tensor) -> tf.Tensor:
    """Rows that are known to be those of a table.

    Gradient tapes know it, and give `DistinctRows` of the whole table; and so
    does the function that is being traced (`StepTrace.lookups_of`).

    Args:
        table: What was looked up.
        ids_U: Distinct row numbers.
        rows_UD: Their rows, gathered where no tape recorded it.

    Returns:
        The rows.
    """
    # The gradient's function keeps what it needs, but not the table.
    layout, shape = table.layout, table.shape

    @tf.custom_gradient
    def record(source: tf.Tensor, ids_U: tf.Tensor, rows_UD: tf.Tensor) -> Any:
        def gradient(upstream: Any) -> Any:
            if isinstance(upstream, tf.IndexedSlices):
                order = shard_order.known(layout, ids_U)
                upstream = segment_sums.segment_sums(
                    upstream.values,
                    upstream.indices,
                    tf.size(ids_U) if order is None else order.count,
                )
            # A gradient may be built in a graph of its own, which takes only
            # what it has made or passed through an operation.
            return (
                DistinctRows(
                    upstream,
                    tf.identity(ids_U),
                    dense_shape(shape),
                ),
                None,
                None,
            )

        return rows_UD, gradient

    rows_UD = record(table.tape_input, ids_U, rows_UD)
    rows_UD.set_shape(tf.TensorShape([None]).concatenate(shape[1:]))
    StepTrace.current().add_lookup(table, ids_U, rows_UD)
    return rows_UD
