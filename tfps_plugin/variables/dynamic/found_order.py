"""Rows of all shards that were found by ids.

Shape legend: N rows.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.lookup.shard_order import ShardOrder
from tfps_plugin.variables.lookup.table import Table


@dataclasses.dataclass(frozen=True, eq=False)
class FoundOrder(ShardOrder):
    """Rows that were found by ids, which may lose them before the update.

    Attributes:
        directories: The directory of each shard.
        devices: Its device.
        ids: For each shard the ids that the rows were found for.
        ids_there: The same, on its device.
    """

    directories: Sequence[ShardDirectory]
    devices: Sequence[str]
    ids: Sequence[tf.Tensor]
    ids_there: Sequence[tf.Tensor]

    @classmethod
    def of(
        cls,
        order: ShardOrder,
        table: Table,
        directories: Sequence[ShardDirectory],
        ids: Sequence[tf.Tensor],
    ) -> "FoundOrder":
        """Returns an order that knows which of its rows have gone.

        Args:
            order: The order, with its rows on the devices of the shards.
            table: The table.
            directories: The directory of each shard.
            ids: For each shard the ids that the rows were found for.
        """
        devices = [shard.device for shard in table.shards]
        return cls(
            **vars(order),
            directories=directories,
            devices=devices,
            ids=ids,
            ids_there=sent(ids, devices),
        )

    def gone(self, shard: int) -> tf.Tensor:
        """Returns the rows of a shard that have gone to other ids meanwhile.

        Args:
            shard: Number of the shard.
        """
        with tf.device(self.devices[shard]):
            rows_N = self.local_ids[shard]
            are_theirs_N = self.directories[shard].are_theirs(
                rows_N, self.ids_there[shard]
            )
            return tf.boolean_mask(rows_N, ~are_theirs_N)


def sent(
    tensors: Sequence[tf.Tensor], devices: Sequence[str]
) -> list[tf.Tensor]:
    """Returns a tensor of each shard, on the shard's device."""
    there = []
    for each, device in zip(tensors, devices, strict=True):
        with tf.device(device):
            there.append(tf.identity(each))
    return there


def ids_of(orders: Sequence[FoundOrder], rows_N: tf.Tensor) -> tf.Tensor:
    """Returns the ids that rows were found for.

    Args:
        orders: Lookups that have found the rows.
        rows_N: Row numbers of the table.
    """
    rows_M = tf.concat([tf.cast(each.ids_U, tf.int64) for each in orders], 0)
    ids_M = tf.concat([each.join(each.ids) for each in orders], 0)
    places_M = tf.argsort(rows_M)
    found_N = tf.searchsorted(
        tf.gather(rows_M, places_M), tf.cast(rows_N, tf.int64)
    )
    return tf.gather(ids_M, tf.gather(places_M, found_N))


def without_gone(
    orders: Sequence[FoundOrder], shard: int, rows_N: tf.Tensor
) -> tf.Tensor:
    """Leaves out rows that have gone to other ids since their lookup.

    Must be called under the lock under which rows are updated: they may lose
    their ids at any other time.

    Args:
        orders: The lookups that have found the rows. A row that one of them
            knows as gone is left out.
        shard: Number of the shard.
        rows_N: Row numbers of gradients.

    Returns:
        The same, with the row that nobody has in the place of gone ones.
    """
    with tf.device(orders[0].devices[shard]):
        gone_M = tf.concat([each.gone(shard) for each in orders], 0)
        gone_M = tf.cast(gone_M, rows_N.dtype)
        # Of these, there are hardly ever any.
        are_gone_N = tf.reduce_any(rows_N[:, None] == gone_M, 1)
        absent = tf.constant(RowSpace.ABSENT, rows_N.dtype)
        return tf.where(are_gone_N, absent, rows_N)
