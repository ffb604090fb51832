"""Numbers of rows that lookups ask for, by shard."""

from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.chief import worker_fetches
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.per_worker.worker_local_handle import (
    WorkerLocalHandle,
)


class RowCounts(WorkerLocalHandle):
    """Number of distinct rows that each shard of a table was asked for.

    Each lane counts for itself, on its worker: nothing travels. The counts of a
    worker that is lost are lost.

    Threading: as `WorkerLocalHandle`.
    """

    def __init__(self, num_shards: int) -> None:
        """Begins with zeros.

        Args:
            num_shards: Number of shards of the table.
        """
        with tf.init_scope():
            super().__init__(
                tf.TensorShape([num_shards]),
                tf.int64,
                "row_counts",
                trainable=False,
                per_lane=True,
            )
            with compat.clear_device(), tf.device(self.device):
                tf.raw_ops.AssignVariableOp(
                    resource=self.own_handle,
                    value=tf.zeros([num_shards], tf.int64),
                )

    def _initial_copy(self, context: DispatchContext) -> tf.Tensor:
        return tf.zeros(self._shape, self._dtype)

    def note(self, ids_of_shards: Sequence[tf.Tensor]) -> None:
        """Counts a lookup; in functions of workers.

        Args:
            ids_of_shards: The distinct ids that each shard is asked for.
        """
        if (
            compat.function_graph() is None
            or tensorflow_saving.is_saving_model()
        ):
            return
        with compat.clear_device(), tf.device(graph_checks.CPU):
            numbers = [tf.size(ids, tf.int64) for ids in ids_of_shards]
            tf.raw_ops.AssignAddVariableOp(
                resource=self.handle, value=tf.stack(numbers)
            )

    def total(self) -> list[int]:
        """Returns the counts of all lanes so far.

        Raises:
            tf.errors.OpError: If a worker does not answer.
        """
        return totals([self])[0]

    def by_lane(self) -> list[tf.Tensor]:
        """Begins to read the counts of each lane, where they are."""
        return [
            compat.read_resource(copy.own_handle, self._dtype)
            for copy in self._resident.existing()
        ]


def totals(tables: Sequence[RowCounts]) -> list[list[int]]:
    """Returns the counts of all lanes so far, of several tables by one fetch.

    Args:
        tables: The counts of each table.

    Raises:
        tf.errors.OpError: If a worker does not answer.
    """
    by_table = [counts.by_lane() for counts in tables]
    fetched = iter(
        worker_fetches.arrays([lane for lanes in by_table for lane in lanes])
    )
    return [
        [
            int(sum(each))
            for each in zip(*[next(fetched) for _ in lanes], strict=True)
        ]
        for lanes in by_table
    ]
