"""Numbers that a directory counts, on the device of the code that uses it.

Shape legend: T tables.
"""

import tensorflow as tf

# Keys that its hash table has had since it was filled, also removed ones.
KEYS = 0
# Lookups of steps that train: the clock by which rows are old in steps.
CLOCK = 1
# Rows made; rows evicted; ids that found no room; ids that were not admitted.
MADE = 2
EVICTED = 3
WITHOUT_ROOM = 4
NOT_ADMITTED = 5
# Ids that steps have looked up; those of them that had a row.
ASKED = 6
PRESENT = 7
# Lookups that the filter has counted since its counters were halved.
COUNTED = 8
# Ids without rows whose exact counts were forgotten, or never noted.
FORGOTTEN = 9
# The time, in microseconds, at which the clock was zero by which rows are old
# in seconds.
EPOCH = 10
NUM_TALLIES = 11


class Tallies:
    """The numbers of one shard; they begin anew when its ps is replaced."""

    def __init__(self, unique_name: str, num_tables: int) -> None:
        """Describes them; `begin` makes them.

        Args:
            unique_name: A name that nothing else on the task has.
            num_tables: Number of tables, each of which has its own.
        """
        self._unique_name = unique_name
        self._shape = [NUM_TALLIES, num_tables]

    def begin(self, changes: dict[int, tf.Tensor]) -> tf.Operation:
        """Sets some numbers; the others are as before, or zero.

        Args:
            changes: Values of numbers, int64, for each table or for all.
        """
        before = tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=self.handle()),
            self.read,
            lambda: tf.zeros(self._shape, tf.int64),
        )
        values = tf.tensor_scatter_nd_update(
            before, _places(changes), self._stacked(changes)
        )
        return tf.raw_ops.AssignVariableOp(resource=self.handle(), value=values)

    def add(self, changes: dict[int, tf.Tensor | int]) -> tf.Operation:
        """Adds to some numbers.

        Args:
            changes: Integers, for each table or for all.
        """
        added = tf.scatter_nd(
            _places(changes), self._stacked(changes), self._shape
        )
        # At once: no other operation keeps all of what several tasks add.
        return tf.raw_ops.AssignAddVariableOp(
            resource=self.handle(), value=added
        )

    def read(self) -> tf.Tensor:
        """Returns all numbers, int64, in the order of the constants above.

        Returns:
            Of each number a row, with a column for each table.
        """
        value = tf.raw_ops.ReadVariableOp(
            resource=self.handle(), dtype=tf.int64
        )
        # A copy: others change the variable in its place.
        return tf.ensure_shape(value, self._shape) + 0

    def free(self) -> None:
        """Frees the variable, which nothing may use any more."""
        tf.raw_ops.DestroyResourceOp(resource=self.handle())

    def handle(self) -> tf.Tensor:
        """Returns the handle of the variable."""
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int64,
            shape=self._shape,
            shared_name=f"{self._unique_name}/tallies",
        )

    def _stacked(self, changes: dict[int, tf.Tensor | int]) -> tf.Tensor:
        return tf.stack(
            [
                tf.broadcast_to(tf.cast(change, tf.int64), self._shape[1:])
                for change in changes.values()
            ]
        )


def _places(changes: dict[int, tf.Tensor | int]) -> tf.Tensor:
    return tf.constant([[number] for number in changes])
