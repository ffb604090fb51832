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

from tfps_plugin.variables.dynamic.ids import keys
from tfps_plugin.variables.dynamic.shard.found import Asker
from tfps_plugin.variables.dynamic.shard.found import Found
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.dynamic.whole_functions import WholeFunction
from tfps_plugin.variables.lookup import graph_checks


class FindFunctions:
    """The functions of one table, or of a stack of them.

    They keep no slot alive: an optimizer may be replaced by another.

    Threading: several threads may trace steps at once. If two find rows of a
    shard for the first time, the functions of one are made in vain.
    """

    def __init__(
        self,
        directory_of: Callable[[range, ShardParts], ShardDirectory],
        present: Callable[[], Iterable[ShardParts]],
        *,
        num_tables: int,
        clears_slots: bool,
    ) -> None:
        """Makes no function yet.

        Args:
            directory_of: Returns the directory of a shard by its rows, counted
                in the table, and its variables.
            present: Returns the variables of the shards that there are now.
            num_tables: Number of tables.
            clears_slots: Whether rows begin anew, and their slots with them.
        """
        self._num_tables = num_tables
        self._clears_slots = clears_slots
        self._directory_of = directory_of
        self._present = present
        self._shards: dict[Any, _OfShard] = {}

    def find(
        self,
        rows: range,
        parts: ShardParts,
        device: str,
        keys_N: tf.Tensor,
        asker: Asker,
    ) -> Found:
        """Finds rows.

        Args:
            rows: The rows of a shard, counted in the table.
            parts: Its variables.
            device: Their device.
            keys_N: Distinct keys of the shard, those of a table together.
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
            function = _function(
                shard.directory, device, asker, self._num_tables
            )
            shard.functions[asker] = function
        with tf.device(graph_checks.CPU):
            given = [keys.ids_of(keys_N)]
            if self._num_tables > 1:
                # A number for each table is less to send than one for each id.
                given.append(keys.counts_of(keys_N, self._num_tables))
        with tf.device(device):
            return Found(*function(*given))


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
    directory: ShardDirectory, device: str, asker: Asker, num_tables: int
) -> WholeFunction:
    def find(
        ids_N: tf.Tensor, counts_T: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device(device):
            keys_N = ids_N
            if counts_T is not None:
                keys_N = keys.sorted_by_table(ids_N, counts_T)
            return directory.find(keys_N, asker).tensors

    signature = [tf.TensorSpec([None], tf.int64)]
    if num_tables > 1:
        signature.append(tf.TensorSpec([num_tables], tf.int64))
    return WholeFunction(find, signature)
