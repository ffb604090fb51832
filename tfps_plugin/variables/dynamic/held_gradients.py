"""Gradients of rows that are held back for several steps.

Until they are applied, their rows may go to other ids, even to those of later
gradients.

Shape legend: N gradients, U rows among them, D numbers in a row.
"""

import tensorflow as tf

from tfps_plugin.variables.dynamic import found_order
from tfps_plugin.variables.dynamic.found_order import FoundOrder
from tfps_plugin.variables.lookup import shard_order
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.lookup.distinct_rows import dense_shape
from tfps_plugin.variables.lookup.shard_order import ShardOrder
from tfps_plugin.variables.lookup.table import Table


def ids_of(table: Table, gradient: tf.IndexedSlices) -> tf.Tensor:
    """Returns the ids that the rows of a gradient were found for.

    Args:
        table: A table that evicts rows.
        gradient: Its gradient, in the graph of the lookups.
    """
    order = None
    if isinstance(gradient, DistinctRows):
        order = gradient.order_by(table.layout)
    if isinstance(order, FoundOrder):
        # The gradient of one lookup has its order.
        return order.join(order.ids)
    orders = table.lookups_of_steps.behind(order, table.layout.num_shards)
    return found_order.ids_of(orders, tf.convert_to_tensor(gradient.indices))


def summed(
    table: Table, rows_N: tf.Tensor, ids_N: tf.Tensor, values_ND: tf.Tensor
) -> DistinctRows:
    """Returns the sums for the ids that have had the rows last.

    Args:
        table: A table that evicts rows.
        rows_N: Row numbers of the table, those of earlier steps first.
        ids_N: The ids that had these rows.
        values_ND: The gradients.

    Returns:
        A gradient that leaves out rows that have gone to others by the time
        of its update.
    """
    rows_U, places_N = tf.unique(rows_N)
    num_rows = tf.size(rows_U)
    last_U = tf.math.unsorted_segment_max(
        tf.range(tf.size(rows_N)), places_N, num_rows
    )
    ids_U = tf.gather(ids_N, last_U)
    are_theirs_N = ids_N == tf.gather(ids_U, places_N)
    sums_UD = tf.math.unsorted_segment_sum(
        tf.boolean_mask(values_ND, are_theirs_N),
        tf.boolean_mask(places_N, are_theirs_N),
        num_rows,
    )
    local_ids, (rows, ids, sums) = shard_order.split_by_shard(
        table.layout, rows_U, rows_U, ids_U, sums_UD
    )
    counts_S = tf.stack([tf.size(each) for each in local_ids])
    devices = [shard.device for shard in table.shards]
    order = FoundOrder.of(
        ShardOrder(
            table.layout,
            rows[0] if len(rows) == 1 else tf.concat(rows, 0),
            found_order.sent(local_ids, devices),
            None if len(devices) == 1 else counts_S,
            tf.size(rows_U),
        ),
        table,
        table.dynamic_table().directories(),
        ids,
    )
    return DistinctRows(
        order.join(sums), order.ids_U, dense_shape(table.shape), order
    )
