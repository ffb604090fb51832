"""Functions that find the rows of ids in a shard.

A directory has hundreds of operations. As a function, they are traced once for
each shard, and a step that finds rows has one operation for it, which the task
of the shard runs.
"""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.variables.dynamic.shard.found import Asker
from tfps_plugin.variables.dynamic.shard.found import Found
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.dynamic.shard.whole_functions import WholeFunction


class FindFunctions:
    """The functions of one table.

    Threading: several threads may trace steps at once. If two find rows of a
    shard for the first time, the functions of one are made in vain.
    """

    def __init__(
        self,
        directory_of: Callable[[range, ShardParts], ShardDirectory],
        present: Callable[[], Iterable[ShardParts]],
    ) -> None:
        """Makes no function yet.

        Args:
            directory_of: Returns the directory of a shard by its rows, counted
                in the table, and its variables.
            present: Returns the variables of the shards that there are now.
        """
        self._directory_of = directory_of
        self._present = present
        self._shards: dict[Any, _OfShard] = {}

    def find(
        self,
        rows: range,
        parts: ShardParts,
        device: str,
        ids_N: tf.Tensor,
        asker: Asker,
    ) -> Found:
        """Finds rows.

        Args:
            rows: The rows of a shard, counted in the table.
            parts: Its variables.
            device: Their device.
            ids_N: Distinct ids of the shard, int64.
            asker: Who asks.
        """
        directory = self._directory_of(rows, parts)
        slots = directory.slots_in_use
        key = (id(parts.rows), rows, device, tuple(map(id, slots)))
        shard = self._shards.get(key)
        if shard is None:
            shard = _OfShard(directory, {})
            # Those of earlier layouts would keep the shards of these.
            present = {id(each.rows) for each in self._present()}
            self._shards = {
                each: earlier
                for each, earlier in self._shards.items()
                if each[0] in present
            } | {key: shard}
        function = shard.functions.get(asker)
        if function is None:
            function = _function(shard.directory, device, asker)
            shard.functions[asker] = function
        with tf.device(device):
            return Found(*function(ids_N))


class _OfShard(NamedTuple):
    directory: ShardDirectory
    functions: dict[Asker, WholeFunction]


def _function(
    directory: ShardDirectory, device: str, asker: Asker
) -> WholeFunction:
    def find(ids_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device(device):
            return directory.find(ids_N, asker).tensors

    return WholeFunction(find, [tf.TensorSpec([None], tf.int64)])
