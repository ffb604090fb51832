"""Rows of all shards that were found by ids.

Shape legend: N rows.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.lookup.shard_order import ShardOrder


@dataclasses.dataclass(frozen=True, eq=False)
class FoundOrder(ShardOrder):
    """Rows that were found by ids, which may lose them before the update.

    Attributes:
        directories: The directory of each shard.
        devices: Its device.
        ids: For each shard the ids that the rows were found for, there.
    """

    directories: Sequence[ShardDirectory]
    devices: Sequence[str]
    ids: Sequence[tf.Tensor]

    def gone(self, shard: int) -> tf.Tensor:
        """Returns the rows of a shard that have gone to other ids meanwhile.

        Args:
            shard: Number of the shard.
        """
        with tf.device(self.devices[shard]):
            rows_N = self.local_ids[shard]
            are_theirs_N = self.directories[shard].are_theirs(
                rows_N, self.ids[shard]
            )
            return tf.boolean_mask(rows_N, ~are_theirs_N)


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
