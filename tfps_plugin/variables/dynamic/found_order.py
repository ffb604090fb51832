"""Rows of all shards that were found by ids."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.lookup.shard_order import ShardOrder


@dataclasses.dataclass(frozen=True, eq=False)
class FoundOrder(ShardOrder):
    """Rows that were found by ids, which may lose them before the update.

    Attributes:
        directories: The directory of each shard.
        devices: Its device.
        ids: For each shard the ids that the rows were found for.
    """

    directories: Sequence[ShardDirectory] = ()
    devices: Sequence[str] = ()
    ids: Sequence[tf.Tensor] = ()

    def ids_to_update(self) -> list[tf.Tensor]:
        """Returns the rows of each shard, without those that have gone."""
        return [self._still_theirs(shard) for shard in range(len(self.ids))]

    def gone(self, shard: int) -> tf.Tensor:
        """Returns the rows of a shard that have gone to other ids meanwhile.

        Args:
            shard: Number of the shard.
        """
        with tf.device(self.devices[shard]):
            rows_N = self.local_ids[shard]
            return tf.boolean_mask(
                rows_N, tf.not_equal(rows_N, self._still_theirs(shard))
            )

    def _still_theirs(self, shard: int) -> tf.Tensor:
        with tf.device(self.devices[shard]):
            return self.directories[shard].still_theirs(
                self.local_ids[shard], self.ids[shard]
            )
