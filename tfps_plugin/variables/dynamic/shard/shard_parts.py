"""Variables of one shard of a dynamic table."""

import dataclasses
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.dynamic.row_space import RowSpace

# Columns of the records.
ID = 0
# 1 if the row belongs to the id.
IS_USED = 1
NUM_COLUMNS = 2

# Columns of the usage.
SEEN = 0
COUNT = 1


@dataclasses.dataclass(frozen=True, eq=False)
class ShardParts:
    """The variables, all with the rows of the shard.

    Attributes:
        rows: The rows of the table.
        records: Ids of the rows, int64, of `NUM_COLUMNS` columns.
        usage: When, and how often, steps have looked rows up, int64; None:
            nobody needs it.
        counters: Counts of lookups of ids without rows; None: there are none.
        slots: Slots of optimizers.
        followers: Those of the slots that begin as the rows do.
    """

    rows: Any
    records: Any
    usage: Any = None
    counters: Any = None
    slots: tuple[Any, ...] = ()
    followers: tuple[Any, ...] = ()

    def clear_slots(self, rows_M: tf.Tensor, space: RowSpace) -> list[Any]:
        """Gives the slots of some rows the values that they began with.

        Args:
            rows_M: Row numbers of the shard.
            space: Rows of all buckets.

        Returns:
            The operations.
        """
        first_M = rows_M - rows_M % space.rows_per_bucket
        return [
            tf.raw_ops.ResourceScatterUpdate(
                resource=slot.handle,
                indices=rows_M,
                updates=tf.raw_ops.ResourceGather(
                    resource=slot.handle,
                    indices=first_M + RowSpace.PRISTINE,
                    dtype=slot.dtype,
                ),
            )
            for slot in self.slots
        ]
