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
        rows = []
        for directory, device, rows_N, ids_N in zip(
            self.directories,
            self.devices,
            self.local_ids,
            self.ids,
            strict=True,
        ):
            with tf.device(device):
                rows.append(directory.still_theirs(rows_N, ids_N))
        return rows
