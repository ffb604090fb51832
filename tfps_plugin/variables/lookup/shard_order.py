"""Ids grouped by the shards that hold them.

Rows in this order are split and joined as blocks. In any other order they
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


@dataclasses.dataclass(frozen=True, eq=False)
class ShardOrder:
    """Distinct ids of a table, those of its first shard first.

    A lookup makes one and hands it to its gradient, which hands it to the
    update.

    Attributes:
        layout: Rows of each shard.
        ids_U: Row numbers of the whole table, shape `(U,)`.
        local_ids: For each shard its ids, counted from its own first row.
        counts_S: Number of ids of each shard, int32, shape `(S,)`; the last
            may be -1, for the rest. None for a table of one shard.
        count: Number of ids, an int32 scalar.
    """

    layout: RowLayout
    ids_U: tf.Tensor
    local_ids: list[tf.Tensor]
    counts_S: tf.Tensor | None
    count: tf.Tensor

    @property
    def is_usable(self) -> bool:
        """True if the code that runs now may use its tensors.

        A gradient may be traced in a function of its own. That function would
        have to capture them, which costs more than finding the shards again.
        """
        if not tf.is_symbolic_tensor(self.ids_U):
            return tf.executing_eagerly()
        return self.ids_U.graph is tf.compat.v1.get_default_graph()

    def split(self, values: tf.Tensor) -> list[tf.Tensor]:
        """Splits values by shard.

        Args:
            values: One value for each id, shape `(U, ...)`.

        Returns:
            For each shard the values of its ids.
        """
        if self.counts_S is None:
            return [values]
        parts: list[tf.Tensor] = tf.split(
            values, self.counts_S, num=self.layout.num_shards
        )
        return parts

    def join(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Joins the values of all shards, in the order of the ids."""
        return parts[0] if len(parts) == 1 else tf.concat(list(parts), 0)


def split_by_shard(
    layout: RowLayout, ids_N: tf.Tensor, *values: tf.Tensor
) -> tuple[list[tf.Tensor], list[list[tf.Tensor]]]:
    """Splits ids in any order, and values that belong to them, by shard.

    Args:
        layout: Rows of each shard.
        ids_N: Row numbers of the whole table, shape `(N,)`.
        *values: Tensors of shape `(N, ...)`.

    Returns:
        For each shard the ids counted from its own first row; and for each of
        `values` the list of its parts.
    """
    if layout.num_shards == 1:
        return [ids_N], [[value] for value in values]
    shards_N = shard_numbers(layout, ids_N)
    parts = tf.dynamic_partition(ids_N, shards_N, layout.num_shards)
    return _local_ids(layout, parts), [
        tf.dynamic_partition(value, shards_N, layout.num_shards)
        for value in values
    ]


def shard_numbers(layout: RowLayout, ids_N: tf.Tensor) -> tf.Tensor:
    """Returns the shard that holds each id, int32, shape `(N,)`.

    Ids beyond the table belong to the last shard, those below zero to the
    first.
    """
    if layout.num_rows <= _MOST_EXACT_FLOAT and ids_N.dtype in _WITH_BOUNDARIES:
        # One operation; a search takes seven, for each table and step.
        return tf.raw_ops.Bucketize(
            input=ids_N,
            boundaries=[float(start) for start in layout.offsets[1:-1]],
        )
    starts = tf.constant(layout.offsets[1:-1], ids_N.dtype)
    if layout.num_shards == 2:
        return tf.cast(ids_N >= starts, tf.int32)
    return tf.searchsorted(starts, ids_N, side="right", out_type=tf.int32)


def _local_ids(
    layout: RowLayout, parts: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns the ids of each shard, counted from its own first row."""
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
) -> tuple[ShardOrder, tf.Tensor]:
    """Sorts distinct ids by shard, on the worker's CPU.

    Args:
        layout: Rows of each shard.
        ids_U: Distinct row numbers, shape `(U,)`.
        positions: Places among them, int32, of any shape.
        is_sorted: Whether the ids are in that order already.

    Returns:
        The ids in their new order; and the places of the same ids there.
    """
    with tf.device(graph_checks.CPU):
        count = tf.size(ids_U)
        if layout.num_shards == 1:
            return ShardOrder(layout, ids_U, [ids_U], None, count), positions
        if is_sorted:
            counts_S = _counts_in_order(layout, ids_U)
            parts = tf.split(ids_U, counts_S, num=layout.num_shards)
        else:
            shards_U = shard_numbers(layout, ids_U)
            parts = tf.dynamic_partition(ids_U, shards_U, layout.num_shards)
            old_places = tf.dynamic_partition(
                tf.range(count), shards_U, layout.num_shards
            )
            counts_S = tf.concat(tf.raw_ops.ShapeN(input=parts), 0)
            # Rarely needed: each shard is asked for its own part.
            ids_U = tf.concat(parts, 0)
            places_U = tf.math.invert_permutation(tf.concat(old_places, 0))
            positions = tf.gather(places_U, positions)
        local_ids = _local_ids(layout, parts)
    return ShardOrder(layout, ids_U, local_ids, counts_S, count), positions


def _counts_in_order(layout: RowLayout, ids_U: tf.Tensor) -> tf.Tensor:
    """Counts the ids of each shard; the ids are sorted by shard."""
    # A binary search only compares some ids with a boundary, and all ids
    # below it come first. The order within a shard does not matter.
    ends = tf.raw_ops.LowerBound(
        sorted_inputs=tf.expand_dims(ids_U, 0),
        values=tf.constant([layout.offsets[1:-1]], ids_U.dtype),
    )
    ends = tf.reshape(ends, [-1])
    if layout.num_shards > 2:
        ends -= tf.concat([[0], ends[:-1]], 0)
    return tf.concat([ends, [-1]], 0)
