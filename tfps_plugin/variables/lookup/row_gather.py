"""Splits ids by shard and gathers rows, each on the ps that holds it.

Shape legend: V rows of the table, D the rest of a row's shape, N ids asked
for, U distinct ids among them, S shards.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup import present_rows
from tfps_plugin.variables.lookup import shard_order
from tfps_plugin.variables.sharding.layout import RowLayout


def split_by_shard(
    layout: RowLayout, ids_U: tf.Tensor, *values: tf.Tensor
) -> tuple[list[tf.Tensor], list[list[tf.Tensor]]]:
    """Sends ids, and what belongs to each, to the shards that hold them.

    Args:
        layout: Rows of each shard.
        ids_U: Row numbers of the whole table, shape `(U,)`.
        *values: Tensors of shape `(U, ...)`.

    Returns:
        For each shard the ids counted from its own first row; and for each of
        `values` the list of its parts.
    """
    if layout.num_shards == 1:
        return [ids_U], [[value] for value in values]
    order = shard_order.known(layout, ids_U)
    if order is not None:
        return order.local_ids, [order.cut(value) for value in values]
    shards_U = shard_order.shard_numbers(layout, ids_U)
    parts = tf.dynamic_partition(ids_U, shards_U, layout.num_shards)
    return shard_order.local_ids(layout, parts), [
        tf.dynamic_partition(value, shards_U, layout.num_shards)
        for value in values
    ]


def gather_rows(
    layout: RowLayout,
    shards: Sequence[Any],
    dtype: tf.DType,
    ids_U: tf.Tensor,
    wire_dtype: tf.DType | None = None,
    width: int | None = None,
) -> tf.Tensor:
    """Gathers distinct rows, each on the ps that holds it.

    Args:
        layout: Rows of each shard.
        shards: The variable of each shard, on its ps.
        dtype: Dtype of the table.
        ids_U: Distinct row numbers, shape `(U,)`.
        wire_dtype: What rows travel as; None: as they are.
        width: Numbers in a row, if they travel as int8.

    Returns:
        The rows in the order of the ids, shape `(U, D)`.
    """
    local_ids, join = questions(layout, ids_U)
    rows = []
    for shard, ids in zip(shards, local_ids, strict=True):
        with tf.device(shard.device):
            mine = present_rows.gather(shard, ids)
            rows.append(wire.narrowed(mine, wire_dtype))
    return wire.widened(join(rows), dtype, width)


def questions(
    layout: RowLayout, ids_U: tf.Tensor
) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], tf.Tensor]]:
    """What each shard is asked for.

    Args:
        layout: Rows of each shard.
        ids_U: Distinct row numbers, shape `(U,)`.

    Returns:
        For each shard its own row numbers; and what makes one tensor of the
        answers, in the order of `ids_U`.
    """
    with tf.device(graph_checks.CPU):
        if layout.num_shards == 1:
            return [ids_U], lambda answers: answers[0]
        if shard_order.known(layout, ids_U) is not None:
            local_ids, _ = split_by_shard(layout, ids_U)
            return local_ids, lambda answers: tf.concat(list(answers), 0)
        positions_U = tf.range(tf.size(ids_U))
        local_ids, (positions,) = split_by_shard(layout, ids_U, positions_U)
        return local_ids, lambda answers: tf.dynamic_stitch(
            positions, list(answers)
        )
