"""Free rows of a shard, on the device of the code that uses them.

Shape legend: C cells and R rows of the shard, M rows that are taken or given
back.
"""

import tensorflow as tf

from tfps_plugin.variables.dynamic.cells import Cells
from tfps_plugin.variables.dynamic.row_space import RowSpace


class FreeRows:
    """A list of free rows for each cell; rows are taken from its end.

    All methods make operations on the current device. The caller lets only one
    of them run at a time.
    """

    def __init__(self, unique_name: str, cells: Cells) -> None:
        """Describes the lists; `reset` makes them.

        Args:
            unique_name: A name that nothing else on the task has.
            cells: The cells of the shard.
        """
        self._unique_name = unique_name
        self._cells = cells

    def reset(self, are_used_R: tf.Tensor) -> list[tf.Operation]:
        """Lists the rows that are not used, the lowest at the end."""
        cells_R = self._cells.of_all_rows()
        rows_R = tf.range(tf.size(cells_R))
        offsets_R = rows_R - self._cells.starts_of(cells_R)
        are_free_R = ~are_used_R & (offsets_R >= RowSpace.RESERVED)
        rows_M = tf.boolean_mask(rows_R, are_free_R)
        cells_M = tf.boolean_mask(cells_R, are_free_R)
        size = len(self._cells)
        counts_C = tf.math.bincount(cells_M, minlength=size, maxlength=size)
        ends_M = tf.gather(tf.cumsum(counts_C), cells_M)
        places_M = self._cells.starts_of(cells_M) + (
            ends_M - 1 - tf.range(tf.size(cells_M))
        )
        listed_R = tf.scatter_nd(places_M[:, None], rows_M, tf.shape(cells_R))
        return [
            tf.raw_ops.AssignVariableOp(resource=self._rows(), value=listed_R),
            tf.raw_ops.AssignVariableOp(
                resource=self._counts(), value=counts_C
            ),
        ]

    def counts(self) -> tf.Tensor:
        """Returns the number of free rows of each cell, int32, `(C,)`."""
        value = tf.raw_ops.ReadVariableOp(
            resource=self._counts(), dtype=tf.int32
        )
        # A copy: others change the variable in its place.
        return tf.ensure_shape(value, [len(self._cells)]) + 0

    def take(self, cells_M: tf.Tensor) -> tf.Tensor:
        """Takes a row from the list of each cell.

        Args:
            cells_M: Cells, which may occur several times.

        Returns:
            Row numbers of the shard, int32; -1 where the list was at its end.
        """
        order_M, sorted_M, ranks_M = ranked(cells_M)
        places_M = tf.gather(self.counts(), sorted_M) - 1 - ranks_M
        are_free_M = places_M >= 0
        rows_M = tf.raw_ops.ResourceGather(
            resource=self._rows(),
            indices=self._cells.starts_of(sorted_M) + tf.maximum(places_M, 0),
            dtype=tf.int32,
        )
        with tf.control_dependencies([rows_M]):
            taken = tf.raw_ops.ResourceScatterSub(
                resource=self._counts(),
                indices=sorted_M,
                updates=tf.cast(are_free_M, tf.int32),
            )
        with tf.control_dependencies([taken]):
            rows_M = tf.where(are_free_M, rows_M, -1)
        return tf.gather(rows_M, tf.math.invert_permutation(order_M))

    def give(self, rows_M: tf.Tensor) -> list[tf.Operation]:
        """Gives rows back, each to the end of its cell's list."""
        order_M, sorted_M, ranks_M = ranked(self._cells.of_rows(rows_M))
        places_M = tf.gather(self.counts(), sorted_M) + ranks_M
        written = tf.raw_ops.ResourceScatterUpdate(
            resource=self._rows(),
            indices=self._cells.starts_of(sorted_M) + places_M,
            updates=tf.gather(rows_M, order_M),
        )
        with tf.control_dependencies([written]):
            return [
                tf.raw_ops.ResourceScatterAdd(
                    resource=self._counts(),
                    indices=sorted_M,
                    updates=tf.ones_like(sorted_M),
                )
            ]

    def free(self) -> None:
        """Frees the memory of the lists, which nothing may use any more."""
        for handle in (self._rows(), self._counts()):
            tf.raw_ops.DestroyResourceOp(resource=handle)

    def _rows(self) -> tf.Tensor:
        """Returns the handle of the lists, each in the place of its cell."""
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int32,
            shape=[int(self._cells.sizes.sum())],
            shared_name=f"{self._unique_name}/free_rows",
        )

    def _counts(self) -> tf.Tensor:
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int32,
            shape=[len(self._cells)],
            shared_name=f"{self._unique_name}/free_counts",
        )


def ranked(
    cells_M: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sorts cells; returns the order, the sorted ones, and their ranks.

    A rank counts those of the same cell that come before.
    """
    order_M = tf.argsort(cells_M, stable=True)
    sorted_M = tf.gather(cells_M, order_M)
    firsts_M = tf.searchsorted(sorted_M, sorted_M, side="left")
    return order_M, sorted_M, tf.range(tf.size(sorted_M)) - firsts_M
