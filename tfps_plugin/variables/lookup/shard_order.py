"""Ids in the order of the shards that hold them.

Rows in this order are cut and joined as they lie; in any other order they
would be copied one by one, for a lookup and again for its update.

Shape legend: U distinct ids, D the rest of a row's shape, S shards.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.sharding.layout import RowLayout

# Boundaries of TensorFlow's Bucketize are float32.
_MOST_EXACT_FLOAT = 1 << 24
_WITH_BOUNDARIES = (tf.int32, tf.int64)
_COLLECTION = "tfps_shard_orders"


@dataclasses.dataclass(frozen=True, eq=False)
class ShardOrder:
    """Distinct ids of a table, those of its first shard first.

    Attributes:
        layout: Rows of each shard.
        ids_U: Row numbers of the whole table, shape `(U,)`.
        local_ids: For each shard its ids, counted from its own first row.
        counts_S: How many these are, int32, shape `(S,)`; the last may be -1,
            for all that are left.
        count: How many ids there are, int32.
    """

    layout: RowLayout
    ids_U: tf.Tensor
    local_ids: list[tf.Tensor]
    counts_S: tf.Tensor
    count: tf.Tensor

    def cut(self, values: tf.Tensor) -> list[tf.Tensor]:
        """For each shard what belongs to its ids.

        Args:
            values: What belongs to each id, shape `(U, ...)`.
        """
        parts: list[tf.Tensor] = tf.split(
            values, self.counts_S, num=self.layout.num_shards
        )
        return parts


def shard_numbers(layout: RowLayout, ids_U: tf.Tensor) -> tf.Tensor:
    """The shard that holds each id, int32, shape `(U,)`.

    An id beyond the table is given to the last shard and one below zero to
    the first.
    """
    if layout.num_rows <= _MOST_EXACT_FLOAT and ids_U.dtype in _WITH_BOUNDARIES:
        # A search is seven operations, for each table and step.
        return tf.raw_ops.Bucketize(
            input=ids_U,
            boundaries=[float(start) for start in layout.offsets[1:-1]],
        )
    starts = tf.constant(layout.offsets[1:-1], ids_U.dtype)
    if layout.num_shards == 2:
        return tf.cast(ids_U >= starts, tf.int32)
    return tf.searchsorted(starts, ids_U, side="right", out_type=tf.int32)


def local_ids(layout: RowLayout, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The ids of each shard, counted from its own first row."""
    return [
        part - tf.constant(offset, part.dtype) if offset else part
        for part, offset in zip(parts, layout.offsets, strict=False)
    ]


def sort(
    layout: RowLayout,
    ids_U: tf.Tensor,
    positions: tf.Tensor,
    *,
    is_sorted: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Brings distinct ids into the order of shards.

    In the function that is being traced, `known` finds the order again.

    Args:
        layout: Rows of each shard.
        ids_U: Distinct row numbers, shape `(U,)`.
        positions: Places among them, int32, of any shape.
        is_sorted: Whether they are in that order already.

    Returns:
        The ids in their new order; and the same ids' places there.
    """
    with tf.device(graph_checks.CPU):
        count = tf.size(ids_U)
        if is_sorted:
            counts_S = _counts_in_order(layout, ids_U)
            parts = tf.split(ids_U, counts_S, num=layout.num_shards)
            _remember(layout, ids_U, parts, counts_S, count)
            return ids_U, positions
        shards_U = shard_numbers(layout, ids_U)
        parts = tf.dynamic_partition(ids_U, shards_U, layout.num_shards)
        old_places = tf.dynamic_partition(
            tf.range(count), shards_U, layout.num_shards
        )
        counts_S = tf.concat(tf.raw_ops.ShapeN(input=parts), 0)
        # Rarely needed: each shard is asked for its own part.
        sorted_U = tf.concat(parts, 0)
        places_U = tf.math.invert_permutation(tf.concat(old_places, 0))
        new_positions = tf.gather(places_U, positions)
        _remember(layout, sorted_U, parts, counts_S, count)
    return sorted_U, new_positions


def _counts_in_order(layout: RowLayout, ids_U: tf.Tensor) -> tf.Tensor:
    """How many ids each shard has, of ids in the order of shards."""
    # A binary search asks of a few ids whether they are below a boundary, and
    # all that are come first. Their own order does not matter.
    ends = tf.raw_ops.LowerBound(
        sorted_inputs=tf.expand_dims(ids_U, 0),
        values=tf.constant([layout.offsets[1:-1]], ids_U.dtype),
    )
    ends = tf.reshape(ends, [-1])
    if layout.num_shards > 2:
        ends -= tf.concat([[0], ends[:-1]], 0)
    return tf.concat([ends, [-1]], 0)


def _remember(
    layout: RowLayout,
    ids_U: tf.Tensor,
    parts: Sequence[tf.Tensor],
    counts_S: tf.Tensor,
    count: tf.Tensor,
) -> None:
    if not tf.executing_eagerly():
        _orders()[id(ids_U)] = ShardOrder(
            layout, ids_U, local_ids(layout, parts), counts_S, count
        )


def known(layout: RowLayout, ids_U: tf.Tensor) -> ShardOrder | None:
    """The order of ids that are known to be in the order of shards.

    Args:
        layout: Rows of each shard.
        ids_U: Row numbers, such as a gradient has.

    Returns:
        None outside of functions, and for ids that `sort` has not returned in
        the same function.
    """
    if not tf.is_symbolic_tensor(ids_U):
        return None
    while ids_U.op.type == "Identity":
        ids_U = ids_U.op.inputs[0]
    order = _orders().get(id(ids_U))
    return order if order is not None and order.layout == layout else None


def _orders() -> dict[int, ShardOrder]:
    """Those of the function that is being traced, by the `id` of their ids."""
    graph = tf.compat.v1.get_default_graph()
    collection = graph.get_collection_ref(_COLLECTION)
    if not collection:
        collection.append({})
    orders: dict[int, ShardOrder] = collection[0]
    return orders
