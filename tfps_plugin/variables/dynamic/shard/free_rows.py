"""Free rows of a shard, on the device of the code that uses them.

Shape legend: B buckets of the shard, C rows of a bucket, R rows of the shard,
M rows that are taken or given back.
"""

import tensorflow as tf

from tfps_plugin.variables.dynamic.row_space import RowSpace


class FreeRows:
    """A list of free rows for each bucket; rows are taken from its end.

    All methods make operations on the current device. The caller lets only one
    of them run at a time.
    """

    def __init__(
        self, unique_name: str, num_buckets: int, space: RowSpace
    ) -> None:
        """Describes the lists; `reset` makes them.

        Args:
            unique_name: A name that nothing else on the task has.
            num_buckets: Number of buckets of the shard.
            space: Rows of all buckets.
        """
        self._unique_name = unique_name
        self._num_buckets = num_buckets
        self._space = space

    def reset(self, are_used_R: tf.Tensor) -> list[tf.Operation]:
        """Lists the rows that are not used, the lowest at the end."""
        space = self._space
        offsets_R = tf.tile(
            tf.range(space.rows_per_bucket), [self._num_buckets]
        )
        # Reserved rows, and used ones, count as zero and come last.
        free_R = tf.where(
            are_used_R | (offsets_R < space.RESERVED), 0, offsets_R
        )
        free_BC = tf.sort(
            tf.reshape(free_R, [self._num_buckets, space.rows_per_bucket]),
            direction="DESCENDING",
        )
        return [
            tf.raw_ops.AssignVariableOp(
                resource=self._offsets(), value=free_BC
            ),
            tf.raw_ops.AssignVariableOp(
                resource=self._counts(),
                value=tf.math.count_nonzero(free_BC, 1, dtype=tf.int32),
            ),
        ]

    def counts(self) -> tf.Tensor:
        """Returns the number of free rows of each bucket, int32, `(B,)`."""
        value = tf.raw_ops.ReadVariableOp(
            resource=self._counts(), dtype=tf.int32
        )
        # A copy: others change the variable in its place.
        return tf.ensure_shape(value, [self._num_buckets]) + 0

    def take(self, buckets_M: tf.Tensor) -> tf.Tensor:
        """Takes a row from the list of each bucket.

        Args:
            buckets_M: Buckets, which may occur several times.

        Returns:
            Row numbers of the shard, int32; -1 where the list was at its end.
        """
        order_M, sorted_M, ranks_M = ranked(buckets_M)
        places_M = tf.gather(self.counts(), sorted_M) - 1 - ranks_M
        are_free_M = places_M >= 0
        offsets_M = tf.raw_ops.ResourceGatherNd(
            resource=self._offsets(),
            indices=tf.stack([sorted_M, tf.maximum(places_M, 0)], 1),
            dtype=tf.int32,
        )
        with tf.control_dependencies([offsets_M]):
            taken = tf.raw_ops.ResourceScatterSub(
                resource=self._counts(),
                indices=sorted_M,
                updates=tf.cast(are_free_M, tf.int32),
            )
        with tf.control_dependencies([taken]):
            rows_M = tf.where(
                are_free_M,
                sorted_M * self._space.rows_per_bucket + offsets_M,
                -1,
            )
        return tf.gather(rows_M, tf.math.invert_permutation(order_M))

    def give(self, rows_M: tf.Tensor) -> list[tf.Operation]:
        """Gives rows back, each to the end of its bucket's list."""
        buckets_M = rows_M // self._space.rows_per_bucket
        order_M, sorted_M, ranks_M = ranked(buckets_M)
        places_M = tf.gather(self.counts(), sorted_M) + ranks_M
        offsets_M = tf.gather(rows_M % self._space.rows_per_bucket, order_M)
        written = tf.raw_ops.ResourceScatterNdUpdate(
            ref=self._offsets(),
            indices=tf.stack([sorted_M, places_M], 1),
            updates=offsets_M,
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
        for handle in (self._offsets(), self._counts()):
            tf.raw_ops.DestroyResourceOp(resource=handle)

    def _offsets(self) -> tf.Tensor:
        """Returns the handle of the lists: places of rows in their bucket."""
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int32,
            shape=[self._num_buckets, self._space.rows_per_bucket],
            shared_name=f"{self._unique_name}/free_offsets",
        )

    def _counts(self) -> tf.Tensor:
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int32,
            shape=[self._num_buckets],
            shared_name=f"{self._unique_name}/free_counts",
        )


def ranked(
    buckets_M: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sorts buckets; returns the order, the sorted ones, and their ranks.

    A rank counts those of the same bucket that come before.
    """
    order_M = tf.argsort(buckets_M, stable=True)
    sorted_M = tf.gather(buckets_M, order_M)
    firsts_M = tf.searchsorted(sorted_M, sorted_M, side="left")
    return order_M, sorted_M, tf.range(tf.size(sorted_M)) - firsts_M
