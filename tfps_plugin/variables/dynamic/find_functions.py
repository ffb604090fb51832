"""Functions that find the rows of ids in a shard.

A directory has hundreds of operations. As a function, they are traced once for
each shard, and a step that finds rows has one operation for it, which the task
of the shard runs.
"""

import dataclasses
import weakref
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

    They keep no slot alive: an optimizer may be replaced by another.

    Threading: several threads may trace steps at once. If two find rows of a
    shard for the first time, the functions of one are made in vain.
    """

    def __init__(
        self,
        directory_of: Callable[[range, ShardParts], ShardDirectory],
        present: Callable[[], Iterable[ShardParts]],
        *,
        clears_slots: bool,
    ) -> None:
        """Makes no function yet.

        Args:
            directory_of: Returns the directory of a shard by its rows, counted
                in the table, and its variables.
            present: Returns the variables of the shards that there are now.
            clears_slots: Whether rows begin anew, and their slots with them.
        """
        self._clears_slots = clears_slots
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
        key = (id(parts.rows), rows, device)
        shard = self._shards.get(key)
        # Optimizers make slots after the first lookups. Most directories write
        # to none.
        in_use = parts.slots if self._clears_slots else parts.followers
        if shard is None or not shard.has(in_use):
            slots, followers = (
                tuple(map(weakref.proxy, each))
                for each in (in_use, parts.followers)
            )
            shard = _OfShard(
                self._directory_of(
                    rows,
                    dataclasses.replace(
                        parts, slots=slots, followers=followers
                    ),
                ),
                tuple(map(weakref.ref, in_use)),
                {},
            )
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
    slots: tuple[Any, ...]
    functions: dict[Asker, WholeFunction]

    def has(self, slots: tuple[Any, ...]) -> bool:
        """Returns whether it was made for these slots."""
        return len(slots) == len(self.slots) and all(
            ours() is slot for ours, slot in zip(self.slots, slots, strict=True)
        )


def _function(
    directory: ShardDirectory, device: str, asker: Asker
) -> WholeFunction:
    def find(ids_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device(device):
            return directory.find(ids_N, asker).tensors

    return WholeFunction(find, [tf.TensorSpec([None], tf.int64)])
