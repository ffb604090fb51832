"""Reads of one moment, under the lock of a shard, on its parameter server.

Shape legend: R rows of the shard, N rows to look at, M rows that are as they
are expected to be.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.recovery.directory_shard import DirectoryShard
from tfps_plugin.variables.updates import update_lock


class Taken(NamedTuple):
    """Rows of all members of a shard, read at one moment, on their ps.

    Attributes:
        rows_M: Numbers of those that belong to the ids they are expected to.
        values: The rows of each member.
        left_out: Numbers of the others.
        marks: Fingerprints of each member's rows, those that differ from any
            for rows that are left out.
    """

    rows_M: tf.Tensor
    values: list[tf.Tensor]
    left_out: tf.Tensor
    marks: list[tf.Tensor]


class LockedReads:
    """Functions that read under the lock of a shard, on its ps.

    Threading: safe from several threads for different devices.
    """

    def __init__(self) -> None:
        """Traces nothing yet."""
        self._functions: dict[Any, Any] = {}

    def fingerprints(self, shard: DirectoryShard) -> tf.Tensor:
        """Returns the fingerprints of all records, of one moment, `(R,)`."""
        records = shard.records
        device, num_rows = shard.device, records.shape[0]

        def take(lock: tf.Tensor, handle: tf.Tensor) -> tf.Tensor:
            with tf.device(device):
                rows_R = tf.range(num_rows, dtype=tf.int64)
                with update_lock.holding_given(lock, device, [rows_R]):
                    value = tf.raw_ops.ResourceGather(
                        resource=handle, indices=rows_R, dtype=tf.int64
                    )
                return _fingerprints(value)

        function = self._traced((device, num_rows), take, [], 2)
        return function(_lock_of(shard), records.own_handle)

    def take(
        self, shard: DirectoryShard, rows_N: tf.Tensor, since_R: tf.Tensor
    ) -> Taken:
        """Reads some rows of all members at one moment.

        Args:
            shard: The shard.
            rows_N: Row numbers, int64, on its ps.
            since_R: Fingerprints of the records that rows are expected to
                have, on its ps.
        """
        device = shard.device
        dtypes = tuple(each.dtype for each in shard.members)

        def take(
            rows_N: tf.Tensor,
            since_R: tf.Tensor,
            lock: tf.Tensor,
            *handles: tf.Tensor,
        ) -> Taken:
            with tf.device(device):
                rows_N, since_R = tf.identity(rows_N), tf.identity(since_R)
                with update_lock.holding_given(lock, device, [rows_N]):
                    values = [
                        tf.raw_ops.ResourceGather(
                            resource=handle, indices=rows_N, dtype=dtype
                        )
                        for handle, dtype in zip(handles, dtypes, strict=True)
                    ]
                marks = [_fingerprints(each) for each in values]
                stays_N = tf.equal(marks[-1], tf.gather(since_R, rows_N))
                staying_M = tf.where(stays_N)[:, 0]
                return Taken(
                    tf.gather(rows_N, staying_M),
                    [tf.gather(each, staying_M) for each in values],
                    tf.boolean_mask(rows_N, ~stays_N),
                    [
                        tf.where(stays_N, each, tf.bitwise.invert(each))
                        for each in marks
                    ],
                )

        vector = tf.TensorSpec([None], tf.int64)
        function = self._traced(
            (device, dtypes), take, [vector, vector], 1 + len(dtypes)
        )
        handles = [each.own_handle for each in shard.members]
        return Taken(*function(rows_N, since_R, _lock_of(shard), *handles))

    def _traced(
        self,
        key: Any,
        function: Callable[..., Any],
        signature: list[tf.TensorSpec],
        num_handles: int,
    ) -> Any:
        """Returns the concrete function, which keeps no variable."""
        if key not in self._functions:
            handles = [tf.TensorSpec([], tf.resource)] * num_handles
            self._functions[key] = tf.function(
                function, autograph=False
            ).get_concrete_function(*signature, *handles)
        return self._functions[key]


def _lock_of(shard: DirectoryShard) -> tf.Tensor:
    lock: Any = shard.rows.update_lock
    return lock.new_handle()


def _fingerprints(values: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(
        tf.raw_ops.Fingerprint(data=values, method="farmhash64"), tf.int64
    )
