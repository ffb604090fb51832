"""Lookups of rows of a variable on parameter servers.

The worker checks the ids and drops repeated ones. Each ps gathers its own rows,
and the worker repeats them where ids were repeated. The gradient is a
`DistinctRows`.

Shape legend: V rows of the table, D the rest of a row's shape, N ids asked
for, U distinct ids among them.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import Protocol

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_tapes
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.graph import tensorflow_vectorizing
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup import present_rows
from tfps_plugin.variables.lookup import shard_order
from tfps_plugin.variables.lookup import vectorized_lookup
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.lookup.distinct_rows import dense_shape
from tfps_plugin.variables.lookup.shard_order import ShardOrder
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.storage import on_disk

# Reorders the first axis of a tensor.
Arrangement = Callable[[tf.Tensor], tf.Tensor]

_CAST = {
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.uint64: tf.int64,
}


class Cache(Protocol):
    """Rows of a table that a worker has already, a `row_cache.RowCache`."""

    def serves(self, table: Table) -> bool:
        """Returns whether the lookup that is being traced may use it.

        Args:
            table: The table.
        """

    def rows(
        self, order: ShardOrder, gather: Callable[[ShardOrder], tf.Tensor]
    ) -> tf.Tensor:
        """Returns rows, of which it has some.

        Args:
            order: Distinct row numbers.
            gather: Gathers rows from the parameter servers.
        """


def look_up(
    table: Table,
    indices: Any,
    *,
    from_end: bool = False,
    are_inside: bool = False,
    in_shard_order: bool = False,
    arranged: Arrangement | None = None,
    cache: Cache | None = None,
) -> tf.Tensor:
    """Looks up rows.

    Repeated ids are asked for once. The gradient is a `DistinctRows` of the
    whole table.

    Args:
        table: The table.
        indices: Row numbers, an integer tensor of any shape.
        from_end: Whether a negative id counts from the end of the table.
        are_inside: Whether the table is known to have all of them.
        in_shard_order: Whether ids of a shard come before those of the next
            shard.
        arranged: Reorders values of `indices` to the order in which the rows
            are to be returned. This saves a copy of the rows themselves.
        cache: Rows that the worker has already.

    Returns:
        The rows, of shape `indices.shape + table.shape[1:]`.
    """
    rows_UD, positions = distinct_rows(
        table,
        indices,
        from_end=from_end,
        are_inside=are_inside,
        in_shard_order=in_shard_order,
        cache=cache,
    )
    if arranged is not None:
        positions = arranged(positions)
    return tf.gather(rows_UD, positions)


def distinct_rows(
    table: Table,
    indices: Any,
    *,
    from_end: bool = False,
    are_inside: bool = False,
    in_shard_order: bool = False,
    cache: Cache | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Looks up each distinct row once.

    Args:
        table: The table.
        indices: Row numbers, an integer tensor of any shape.
        from_end: Whether a negative id counts from the end of the table.
        are_inside: As for `look_up`.
        in_shard_order: As for `look_up`.
        cache: As for `look_up`.

    Returns:
        The distinct rows, shape `(U, D)`; and for each of `indices` its place
        among them, int32, of the shape of `indices`. In a vectorized function
        each id has a row of its own: only all elements together have distinct
        ones.
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
    # A tape lets rows travel in fewer bits.
    wire_dtype = wire.dtype_of_reads(table)
    is_cached = cache is not None and cache.serves(table)
    replica = StepTrace.current().replica
    if replica is not None and replica.can_meet:
        order, rows_UD, positions = replica.meet(
            f"a lookup in {table.path!r}",
            tf.convert_to_tensor(indices),
            lambda given: _of_replicas(
                table,
                given,
                wire_dtype,
                from_end=from_end,
                are_inside=are_inside,
            ),
        )
        # Each replica has a tape of its own.
        return _recorded_on_worker(table, order, rows_UD), positions
    order, positions = _distinct_ids(
        table,
        indices,
        from_end=from_end,
        are_inside=are_inside,
        in_shard_order=in_shard_order,
    )
    if cache is not None and is_cached:
        with compat.stop_recording():
            rows_UD = tensorflow_tapes.only_for_its_own(
                cache.rows(
                    order, lambda missing: _gather(table, missing, wire_dtype)
                )
            )
        return _recorded_on_worker(table, order, rows_UD), positions
    if table.is_whole:
        return _rows_of_whole(table, order), positions
    with compat.stop_recording():
        rows_UD = _gather(table, order, wire_dtype)
    return _recorded(table, order, rows_UD), positions


def rows_in_order(table: Table, order: ShardOrder) -> tf.Tensor:
    """Looks up rows whose numbers the parameter servers have found.

    Args:
        table: The table.
        order: Distinct row numbers. A row whose gradient is zero may occur
            several times.

    Returns:
        The rows in the order of the numbers, shape `(U, D)`.
    """
    table.was_looked_up = True
    if table.is_whole:
        return _rows_of_whole(table, order)
    # A tape lets rows travel in fewer bits.
    wire_dtype = wire.dtype_of_reads(table)
    with compat.stop_recording():
        rows_UD = _gather(table, order, wire_dtype)
    return _recorded(table, order, rows_UD)


def _of_replicas(
    table: Table,
    indices: Sequence[tf.Tensor],
    wire_dtype: tf.DType | None,
    *,
    from_end: bool,
    are_inside: bool,
) -> list[tuple[ShardOrder, tf.Tensor, tf.Tensor]]:
    """Looks up what the replicas of a worker need, each row once.

    Args:
        table: The table.
        indices: The row numbers that each replica needs.
        wire_dtype: As for `_gather`.
        from_end: As for `look_up`.
        are_inside: Likewise.

    Returns:
        For each replica the distinct row numbers of all, their rows, and the
        places of its own ids among them.
    """
    with tf.device(graph_checks.CPU):
        ids_N = tf.concat([tf.reshape(each, [-1]) for each in indices], 0)
    order, positions_N = _distinct_ids(
        table, ids_N, from_end=from_end, are_inside=are_inside
    )
    rows_UD = _gather(table, order, wire_dtype)
    with tf.device(graph_checks.CPU):
        parts = tf.split(
            positions_N, tf.stack([tf.size(each) for each in indices])
        )
        positions = [
            tf.reshape(part, tf.shape(each))
            for part, each in zip(parts, indices, strict=True)
        ]
    for mine, each in zip(positions, indices, strict=True):
        mine.set_shape(each.shape)
    return [(order, rows_UD, mine) for mine in positions]


def _recorded_on_worker(
    table: Table, order: ShardOrder, rows_UD: tf.Tensor
) -> tf.Tensor:
    """Records a lookup whose rows the worker has, for one replica or alone."""
    with compat.stop_recording():
        rows_UD = tf.identity(rows_UD)
    shape = table.shape
    compat.record_gradient(
        rows_UD,
        table.tape_input,
        lambda upstream: _gradient(upstream, order, order.ids_U, shape),
    )
    rows_UD.set_shape(tf.TensorShape([None]).concatenate(shape[1:]))
    StepTrace.current().add_lookup(table, order.ids_U, rows_UD)
    return rows_UD


def _rows_of_whole(table: Table, order: ShardOrder) -> tf.Tensor:
    """Looks up distinct rows of a table that is a variable on one ps."""
    whole: Any = table.shards[0]
    if table.row_counts is not None:
        table.row_counts.note([order.ids_U])
    with compat.stop_recording():
        with tf.device(graph_checks.CPU):
            # On the worker, where a gradient may need them.
            ids_U1 = tf.expand_dims(order.ids_U, 1)
        with tf.device(whole.device):
            if whole.on_disk is None:
                rows_UD = present_rows.gather(whole, order.ids_U, ids_U1)
            else:
                rows_UD = present_rows.gather(
                    whole, on_disk.brought(order.ids_U, whole)
                )
    # `_recorded` has an operation that reads the handle, so that the rows would
    # travel back to the ps.
    shape = table.shape
    compat.record_gradient(
        rows_UD,
        table.tape_input,
        lambda upstream: _gradient(upstream, order, order.ids_U, shape),
    )
    rows_UD = wire.received(whole, rows_UD)
    StepTrace.current().add_lookup(table, order.ids_U, rows_UD)
    return rows_UD


def _gather(
    table: Table, order: ShardOrder, wire_dtype: tf.DType | None
) -> tf.Tensor:
    """Gathers distinct rows, each on the ps that holds it.

    Args:
        table: The table.
        order: Distinct row numbers.
        wire_dtype: Dtype of the rows on the way; None for their own.

    Returns:
        The rows in the order of the ids, shape `(U, D)`.
    """
    if table.row_counts is not None:
        table.row_counts.note(order.local_ids)
    rows = []
    for shard, ids in zip(table.shards, order.local_ids, strict=True):
        with tf.device(shard.device):
            mine = present_rows.gather(shard, on_disk.brought(ids, shard))
            rows.append(wire.narrowed(mine, wire_dtype))
    return wire.widened(order.join(rows), table.dtype, table.shape[-1])


def _distinct_ids(
    table: Table,
    indices: Any,
    *,
    from_end: bool = False,
    are_inside: bool = False,
    in_shard_order: bool = False,
) -> tuple[ShardOrder, tf.Tensor]:
    """Checks ids and drops repeated ones, on the worker's CPU.

    Args:
        table: The table.
        indices: Row numbers, an integer tensor of any shape.
        from_end: Whether a negative id counts from the end of the table.
        are_inside: As for `look_up`.
        in_shard_order: As for `look_up`.

    Returns:
        The distinct row numbers, which wait for the check; and for each of
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
            ids_N = graph_checks.require_inside(
                ids_N, num_rows, table.path, from_end=from_end
            )
        if num_rows <= tf.int32.max:
            # Half as many bytes to compare and to send.
            ids_N = tf.cast(ids_N, tf.int32)
        if from_end:
            # All are inside, counted from one end or the other.
            ids_N = tf.math.floormod(ids_N, tf.constant(num_rows, ids_N.dtype))
        ids_U, positions_N = tf.unique(ids_N)
        # tf.unique keeps the order of first occurrences.
        order, positions_N = shard_order.sort(
            table.layout, ids_U, positions_N, is_sorted=in_shard_order
        )
        positions = tf.reshape(positions_N, tf.shape(ids))
    positions.set_shape(ids.shape)
    return order, positions


def _recorded(table: Table, order: ShardOrder, rows_UD: tf.Tensor) -> tf.Tensor:
    """Records a lookup for gradient tapes and for the traced function.

    Tapes compute a `DistinctRows` of the whole table as its gradient. The
    function that is being traced lists the lookup in its `StepTrace`.

    Args:
        table: The table.
        order: Distinct row numbers.
        rows_UD: Their rows, gathered while no tape was recording.

    Returns:
        The rows.
    """
    # The gradient's function must not keep the table alive.
    shape = table.shape

    @tf.custom_gradient
    def record(source: tf.Tensor, ids_U: tf.Tensor, rows_UD: tf.Tensor) -> Any:
        def gradient(upstream: Any) -> Any:
            return _gradient(upstream, order, ids_U, shape), None, None

        return rows_UD, gradient

    rows_UD = record(table.tape_input, order.ids_U, rows_UD)
    rows_UD.set_shape(tf.TensorShape([None]).concatenate(shape[1:]))
    StepTrace.current().add_lookup(table, order.ids_U, rows_UD)
    return rows_UD


def _gradient(
    upstream: Any, order: ShardOrder, ids_U: tf.Tensor, shape: tf.TensorShape
) -> DistinctRows:
    """Returns the gradient of a table from that of its distinct rows.

    Args:
        upstream: Gradient of the rows, dense or slices.
        order: Distinct row numbers.
        ids_U: The same in the graph of the gradient.
        shape: Shape of the table.
    """
    if isinstance(upstream, tf.IndexedSlices):
        upstream = tf.math.unsorted_segment_sum(
            upstream.values,
            upstream.indices,
            order.count if order.is_usable else tf.size(ids_U),
        )
    # A gradient may be built in a graph of its own. The identity is an
    # operation of that graph.
    return DistinctRows(upstream, tf.identity(ids_U), dense_shape(shape), order)
